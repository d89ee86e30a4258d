"""Checks of edges, their conversion to a weighted adjacency, and its normalisation."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from pyg_topomask.checks import check_floating, check_integer, holds, readable
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.typing import Adj


class CSR(NamedTuple):
    """Weighted adjacency: the pattern of the distinct edges, sorted by (row, column), and their weights."""

    pattern: Pattern
    weight: Tensor  # [E'], floating point; equal edges are added up

    @property
    def num_nodes(self) -> int:
        """Number of nodes ``N``."""
        return self.pattern.num_rows

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of each node, ``[N]``, int64."""
        return self.pattern.rowptr.diff().long()

    @property
    def row(self) -> Tensor:
        """Row of each edge, ``[E']``, int64."""
        return self.pattern.row.long()

    @property
    def col(self) -> Tensor:
        """Column of each edge, ``[E']``, int64."""
        return self.pattern.col.long()

    @property
    def T(self) -> "CSR":
        """The transposed adjacency."""
        pattern, order = self.pattern.transposed
        return CSR(pattern, self.weight.index_select(0, order))


def stored_edges(graph: Any) -> Any:
    """The ``edge_index`` of a graph, or else its ``adj_t``; :obj:`None` if it has neither."""
    edge_index = graph.get("edge_index")
    return graph.get("adj_t") if edge_index is None else edge_index


def edge_tensors(edge_index: Adj | CSR, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return ``(edge_index [2, E], edge_weight [E] or None)`` of a graph in any format of PyG, or of a `CSR`, sorted.

    A sparse tensor of torch or a ``torch_sparse.SparseTensor`` is read as PyG does when it replaces ``edge_index``: as
    the transposed adjacency ``adj_t`` (`ToSparseTensor`), whose values are the weights. torch's sparse tensors always
    have values: they are one without weights.

    Raises:
        TypeError: If ``edge_index`` has another type, or if weights are given twice.
    """
    if isinstance(edge_index, EdgeIndex):
        return edge_index.as_tensor(), edge_weight
    if not isinstance(edge_index, CSR) and not is_sparse(edge_index):
        if isinstance(edge_index, Tensor):
            return edge_index, edge_weight
        kind = type(edge_index).__name__
        raise TypeError(f"the edges must be a [2, E] tensor, a sparse tensor or a SparseTensor (got {kind})")
    if isinstance(edge_index, CSR):
        source, target, value = edge_index.row, edge_index.col, edge_index.weight
    elif isinstance(edge_index, Tensor):
        adj = edge_index.to_sparse_coo().coalesce()
        (target, source), value = adj.indices(), adj.values()
    else:
        target, source, value = edge_index.coo()
    if value is not None and edge_weight is not None:
        raise TypeError(
            "'edge_weight' is given although the sparse adjacency already holds values; pass only one of them"
        )
    return torch.stack([source, target]), edge_weight if value is None else value


def relation_of(edge_type: int | Sequence[int] | None) -> tuple[int, ...]:
    """The numbers of the types of edges that form a relation; none for all edges. Raises TypeError and ValueError."""
    if edge_type is None:
        return ()
    numbers = tuple(edge_type) if isinstance(edge_type, Iterable) else (edge_type,)
    if not numbers:
        raise ValueError(f"'edge_type' must name a type of edges (got {edge_type}); None stands for all edges")
    return tuple(check_integer("edge_type", number, 0) for number in numbers)


@once_per_batch
def edges_of_relation(kinds: Tensor, relation: tuple[int, ...], num_edges: int) -> Tensor:
    """Positions of the edges of a relation, given the type of each edge, ``[E]``. Raises ValueError."""
    is_integer = kinds.dtype != torch.bool and not (kinds.is_floating_point() or kinds.is_complex())
    if not is_integer or kinds.shape != (num_edges,):
        given = f"{kinds.dtype}, {list(kinds.shape)}"
        raise ValueError(f"'edge_type' must hold an integer for each of {num_edges} edges (got {given})")
    return torch.isin(kinds, torch.tensor(relation, device=kinds.device)).nonzero().view(-1)


def is_sparse(adj: Any) -> bool:
    """Whether ``adj`` is a sparse tensor of torch or a ``torch_sparse.SparseTensor``, an optional package."""
    if isinstance(adj, Tensor):
        return adj.layout != torch.strided
    return type(adj).__module__.startswith("torch_sparse") and hasattr(adj, "coo")


def check_edges(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None, name: str = "edge_index") -> None:
    """Refuse edges that do not describe a graph of ``num_nodes`` nodes; messages call them ``name``.

    Raises:
        TypeError: If indices are not integers or weights are not floating point.
        ValueError: If shapes are wrong, an index is out of range or a weight is not finite. What depends on values is
            an assertion on CUDA and in compiled code, see `holds`.
    """
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"'{name}' must have shape [2, E] (got {list(edge_index.shape)})")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"'{name}' must hold integers, int64 or int32 (got {edge_index.dtype}); use .long()")
    if num_nodes < 0:
        raise ValueError(f"'num_nodes' must not be negative (got {num_nodes})")
    if edge_index.numel() > 0:
        low, high = edge_index.aminmax()
        if not holds((low >= 0) & (high < num_nodes), f"'{name}' contains a node that does not exist"):
            raise ValueError(
                f"'{name}' contains node {int(low if low < 0 else high)}, but nodes are 0 to {num_nodes - 1}. "
                "Does 'num_nodes' include isolated nodes?"
            )
    if edge_weight is None:
        return
    check_floating("edge_weight", edge_weight)
    if edge_weight.shape != edge_index.shape[1:]:
        raise ValueError(
            f"'edge_weight' must have one number per edge, [{edge_index.size(1)}] (got {list(edge_weight.shape)})"
        )
    if readable(edge_weight) and not bool(edge_weight.isfinite().all()):
        raise ValueError("'edge_weight' holds NaN or infinity")


@once_per_batch
def distinct_edges(edge_index: Tensor, num_nodes: int) -> tuple[Pattern, Tensor]:
    """Pattern of the distinct edges, and the index of each edge's entry, computed once per batch."""
    return Pattern.merge(*edge_index, num_nodes, num_nodes)


def to_csr(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None) -> CSR:
    """Weighted adjacency of a checked edge list; the pattern does not depend on the order of the edges.

    Args:
        edge_index: Edges, shape ``[2, E]``.
        num_nodes: ``N``.
        edge_weight: Weights, shape ``[E]``; one per edge if :obj:`None`.
    """
    weight = torch.ones(edge_index.size(1), device=edge_index.device) if edge_weight is None else edge_weight
    pattern, entry = Pattern.merge(*edge_index, num_nodes, num_nodes)
    return CSR(pattern, weight.new_zeros(pattern.nnz).index_add_(0, entry, weight))


def drop_zeros(csr: CSR) -> CSR:
    """The adjacency without entries of weight 0, because such an edge does not connect its nodes."""
    keep = csr.weight != 0
    if bool(keep.all()):
        return csr
    row, col = csr.pattern.row[keep], csr.pattern.col[keep]
    return CSR(Pattern(row, col, csr.num_nodes, csr.num_nodes), csr.weight[keep])


def root_strengths(csr: CSR) -> Tensor:
    r"""Square roots of the node strengths :math:`D_{ii} = \sum_j A_{ij}`; a strength of 0 counts as 1. Shape ``[N]``.

    Sums are computed relative to the largest weight of their row, so that they are finite and accurate for weights of
    any size.

    Raises:
        ValueError: If a node's weights add up to a negative number.
    """
    zeros, row = csr.weight.new_zeros(csr.num_nodes), csr.row
    top = zeros.scatter_reduce(0, row, csr.weight.detach().abs(), "amax")  # it cancels, also in the gradient
    top = torch.where(top > 0, top, 1)
    total = zeros.index_add(0, row, csr.weight / top[row])
    if bool((total < 0).any()):
        raise ValueError(
            f"normalising needs node strengths ≥ 0 (got {float((top * total).min()):.3g}); "
            "are some edge weights negative?"
        )
    positive = total > 0
    return torch.where(positive, top.sqrt() * torch.where(positive, total, 1).sqrt(), 1)  # no gradient of √0


def sym_normalize(csr: CSR) -> CSR:
    r"""Weights of :math:`W = D^{-1/2} A D^{-1/2}`; a common factor of :math:`A`, however large, cancels.

    Raises:
        ValueError: If a node's weights add up to a negative number, which has no square root.
    """
    root = root_strengths(csr)
    return csr._replace(weight=csr.weight / root[csr.row] / root[csr.col])
