"""Masks that are a free function of the shortest-path distance in a graph."""

import copy

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import holds
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.parameters import coefficient_heads
from pyg_topomask.ops.attention.mask import DenseBlocks, Rows, Support
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import Combination, Pattern, spmm


class HopOperator(MaskOperator):
    r"""Mask :math:`M_{ij} = f(d(i, j))` of distances in a graph; 0 for pairs that are not listed.

    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(P\, C)`, a sparse product.

    Args:
        index: Pairs (i, j), each once, shape ``[2, P]``.
        length: Distance of each pair, from 0 to ``K``, shape ``[P]``.
        values: :math:`f` at 0, 1, … ``K``, shape ``[K + 1]``, or ``[H, K + 1]`` for one mask per head.
        num_nodes: ``N``.

    Raises:
        ValueError: If shapes disagree, a node or a distance does not exist, or a pair is listed twice.
        TypeError: If indices are not integers, or ``values`` is not floating point.
    """

    def __init__(self, index: Tensor, length: Tensor, values: Tensor, num_nodes: int) -> None:
        self.heads = coefficient_heads("values", values)
        if length.shape != index.shape[1:]:
            raise ValueError(f"'length' must be [{index.size(-1)}], one for each pair (got {list(length.shape)})")
        self.pattern, self._indicator = _table(index, length, num_nodes, values.size(-1), values.dtype)
        self.values, self.num_nodes, self.num_multiply_adds = values, num_nodes, self.pattern.nnz
        self.dtype, self.device, self.numbers = values.dtype, values.device, (values,)

    def _like(self, pattern: Pattern, indicator: Tensor, values: Tensor) -> "HopOperator":
        mask = copy.copy(self)
        mask.pattern, mask._indicator, mask.values, mask.numbers = pattern, indicator, values, (values,)
        return mask

    def _with(self, values: Tensor) -> "HopOperator":
        return self._like(self.pattern, self._indicator, values)

    @property
    def T(self) -> "HopOperator":
        pattern, order = self.pattern.transposed
        return self._like(pattern, self._indicator.index_select(0, order), self.values)

    @property
    def support(self) -> Support:
        return Support(self._pairs, lambda: self.pattern.nnz, lambda: self.pattern.rowptr.diff().long(), kept=True)

    def _pairs(self, rows: Rows | None) -> tuple[Pattern, Combination]:
        if rows is None:
            return self.pattern, Combination(self._indicator, self.values)
        pattern, entries = self.pattern.rows(*rows)
        return pattern, Combination(self._indicator[entries], self.values)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return self._blocks_by_product(self.pattern)

    def _matmul(self, x: Tensor) -> Tensor:
        entries = Combination(self._indicator, self.values).values.to(x.dtype)
        return spmm(self.pattern, entries, x)


@once_per_batch
@torch.no_grad()
def _table(
    index: Tensor, length: Tensor, num_nodes: int, num_values: int, dtype: torch.dtype
) -> tuple[Pattern, Tensor]:
    """The pattern of the pairs, and whether each distance is that of each pair, ``[P, K + 1]``, as 0 or 1."""
    check_edges(index, num_nodes, None, "index")
    pattern, entry = Pattern.merge(*index, num_nodes, num_nodes)
    if pattern.nnz != length.numel() and not plans.is_padded():
        raise ValueError(f"'index' lists {length.numel() - pattern.nnz} pairs more than once")
    hops = length.new_zeros(pattern.nnz, dtype=torch.int64).index_copy_(0, entry, length.long())
    fits = ((hops >= 0) & (hops < num_values)).all()
    wanted, remedy = f"must be 0 to {num_values - 1}", "give HopMask and AddHops the same 'max_hops'"
    if not holds(fits, f"'length' of pairs {wanted}; {remedy}"):
        raise ValueError(f"'length' {wanted} (got {int(hops.min())} to {int(hops.max())}); {remedy}")
    indicator = torch.zeros(num_values, pattern.nnz, dtype=dtype, device=index.device)
    return pattern, indicator.scatter_(0, hops[None], 1.0).t()  # compiled code reads it by distance
