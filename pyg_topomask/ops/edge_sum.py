"""Sums over the edges of each node, which message passing and encoders share.

They use PyTorch's `embedding_bag`, which gathers and adds in one pass. On two CPU cores, 38,400 edges of 96 channels
took 0.23 ms, against 0.55 ms for PyTorch's native compressed-row product, 0.73 ms for `index_add`, and 5 ms for MKL's
product and for `segment_reduce`. It adds in a fixed order on CUDA as well, so two runs agree bit for bit.
"""

from functools import partial

from torch import Tensor
from torch.nn.functional import embedding_bag

from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.functions import Linear
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.operators import for_each
from pyg_topomask.ops.sparse import Pattern


@partial(once_per_batch, traced=True)
def incidence(edge_index: Tensor, num_nodes: int) -> tuple[Pattern, Pattern]:
    """For the edges ``[2, E]`` of a batch, the edges that enter each node and those that leave it.

    Both are patterns ``[N, E]``: their rows are nodes, their columns are edges.

    Raises:
        TypeError, ValueError: As `check_edges`.
    """
    check_edges(edge_index, num_nodes, None)
    (source, leaving), (target, entering) = (end.sort(stable=True) for end in edge_index)
    shape = num_nodes, edge_index.size(1)
    return Pattern(target, entering, *shape), Pattern(source, leaving, *shape)


@once_per_batch
def _sources(edge_index: Tensor, num_nodes: int) -> Pattern:
    """Pattern ``[N, N]`` of the sources of the edges that enter each node."""
    entering, _ = incidence(edge_index, num_nodes)
    return Pattern(entering.row, edge_index[0].index_select(0, entering.col), num_nodes, num_nodes)


def sum_rows(pattern: Pattern, x: Tensor) -> Tensor:
    """Product of the 0/1 matrix of a pattern and ``x [num_cols, C]``: ``[num_rows, C]``."""
    if pattern.nnz == 0 or x.size(1) == 0:
        return x.new_zeros(pattern.num_rows, x.size(1))
    return _sum(pattern.rowptr, pattern.col, x)


@for_each
def _sum(rowptr: Tensor, col: Tensor, x: Tensor) -> Tensor:
    return embedding_bag(col, x.contiguous(), rowptr, mode="sum", include_last_offset=True)


def neighbour_sum(x: Tensor, edge_index: Tensor) -> Tensor:
    """Sum of the features of the sources of the edges that enter each node; differentiable in ``x``.

    Args:
        x: Node features, shape ``[N, C]``.
        edge_index: Edges, shape ``[2, E]``.

    Returns:
        Shape ``[N, C]``.
    """
    return _NeighbourSum.of(x, _sources(edge_index, x.size(0)))


class _NeighbourSum(Linear):
    @staticmethod
    def forward(x: Tensor, sources: Pattern) -> Tensor:
        return sum_rows(sources, x)

    @staticmethod
    def adjoint(sources: Pattern) -> tuple[Pattern]:
        return (sources.transposed[0],)
