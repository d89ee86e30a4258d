"""The mask of graph random features."""

import torch
from torch import Tensor

from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.sparse_factor import Factor, SparseFactorOperator, count_pairs
from pyg_topomask.ops.attention.mask import DenseBlocks, Entries, Rows, Support, evaluate
from pyg_topomask.ops.blocks import BlockLayout, Triples, group_rows, product_blocks, product_work
from pyg_topomask.ops.numerics import absolute, non_negative
from pyg_topomask.ops.sparse import Combination, Pattern
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.pair_table import EntryTable, monomials
from pyg_topomask.ops.walks.product import WalkProduct

# Rounding error of the squared norm of a row, in machine epsilons; it has a few tens of terms.
_ROUNDING = 16


class GRFOperator(MaskOperator):
    r"""Estimate :math:`\hat M = \Phi_1 \Phi_2^\top` of a power series of the adjacency, from stored random walks.

    :math:`\Phi_{iv} = \sum_\ell f_\ell\, \mathrm{load}(i, v, \ell)`. On the support of the mask, the entries are a
    polynomial in ``f``, whose coefficients depend only on the walks (`ops.walks.pair_table`).

    With ``key_modulation``, :math:`\Phi_2` has a function of its own, and :math:`\alpha` is their convolution.

    If ``walks`` has coefficients of the diagonal, they replace the squared norms of :math:`\Phi_1` on the diagonal.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eq. 10 and Appendix D, Eq. 22 and 23.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(\mathrm{nnz}\, C)`.

    Args:
        walks: Structure of the two walk tables, built once per batch.
        modulation: :math:`f`, shape ``[K + 1]``, or ``[H, K + 1]`` for one mask per head.
        key_modulation: The function of :math:`\Phi_2`, in the shape of ``modulation``; ``modulation`` if :obj:`None`.
    """

    def __init__(self, walks: WalkProduct, modulation: Tensor, key_modulation: Tensor | None = None) -> None:
        self.walks, self.modulation, self.key_modulation = walks, modulation, key_modulation
        self.num_nodes, self.heads = walks.num_nodes, modulation.size(0) if modulation.dim() == 2 else None
        self.dtype, self.device = modulation.dtype, modulation.device
        self.num_multiply_adds = walks.num_entries

    @property
    def factors(self) -> SparseFactorOperator:
        """The mask as its two sparse factors, computed on each call, because cached ones would break recomputation."""
        left, right = (
            None if table is None else Factor(table.pattern, table.values(modulation))
            for table, modulation in zip((self.walks.left, self.walks.right), self._functions)
        )
        return SparseFactorOperator(left, right, self.num_nodes)

    @property
    def _functions(self) -> tuple[Tensor, Tensor]:
        """The modulation functions of queries and keys."""
        return self.modulation, self.modulation if self.key_modulation is None else self.key_modulation

    @property
    def T(self) -> "GRFOperator":
        if self.key_modulation is None:
            return self if self.walks.T is self.walks else GRFOperator(self.walks.T, self.modulation)
        return GRFOperator(self.walks.T, self.key_modulation, self.modulation)

    @property
    def bound(self) -> "GRFOperator":
        r""":math:`\Phi_1(|f|)\, \Phi_2(|f|)^\top` with absolute loads."""
        if self.walks.absolute is self.walks and all(map(non_negative, self._functions)):
            return self
        keys = None if self.key_modulation is None else absolute(self.key_modulation)
        return GRFOperator(self.walks.absolute, absolute(self.modulation), keys)

    @property
    def eps(self) -> float:
        return max(super().eps, self.walks.eps)

    @property
    def error(self) -> float | Tensor:
        """Rounding error of the squared norms that the given diagonal replaces; it may be all of an entry."""
        if self.walks.diagonal is None:
            return 0.0
        walks = self.walks.absolute
        norms = walks.squared_norms @ monomials(*(f.detach().abs() for f in self._functions)).t()
        return _ROUNDING * torch.finfo(self.dtype).eps * norms

    @property
    def support(self) -> Support:
        return Support(self._list_pairs, self._count_pairs, lambda: self.walks.counts.pairs_by_row, kept=True)

    def _count_pairs(self) -> int:
        return count_pairs(self.walks.counts.total, self.num_multiply_adds, lambda: self._pair_table.pattern)

    @property
    def _pair_table(self) -> EntryTable:
        return self.walks.pairs if self.key_modulation is None else self.walks.ordered_pairs

    def _list_pairs(self, rows: Rows | None) -> tuple[Pattern, Entries]:
        if rows is None:
            table, weights = self._pair_table, self.walks.pair_weights(self.modulation, self.key_modulation)
            return table.pattern, Combination(table.coeffs, weights)
        factors = self.factors
        factors.keeps_pairs = False  # pairs with entries of 0 stay, because those of the bounding mask may differ
        pattern, entries = factors.support.pairs(rows)
        if self.walks.diagonal is None:
            return pattern, entries
        change = self._diagonal_change().index_select(0, pattern.col)
        on = pattern.row + rows[0] == pattern.col
        return pattern, evaluate(entries) + torch.where(on if change.dim() == 1 else on[:, None], change, 0)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, lambda sizes: product_work(sizes, self.num_multiply_adds))

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        tables, second = self.walks.distinct_tables, None
        left = self._entries(tables[0], self.modulation)
        if self.walks.symmetric:
            same = len(tables) == 1 and self.key_modulation is None
            second = left if same else self._entries(tables[-1], self._functions[1])
        blocks = product_blocks(layout, left, second)
        if self.walks.diagonal is None:
            return blocks
        diagonal = self.walks.diagonal @ monomials(self.modulation, self.key_modulation).t()  # [N] or [N, H]
        parts = group_rows(diagonal, layout.groups)
        return [torch.diagonal_scatter(block, part, dim1=-2, dim2=-1) for block, part in zip(blocks, parts)]

    def _entries(self, table: WalkTable, modulation: Tensor) -> Triples:
        load, length = table.load.to(self.dtype), table.length.long()
        if self.heads is not None:
            load, length = load[:, None], length[:, None].expand(-1, self.heads)
        start, visited = table.index
        # Gathered, not indexed, because threads add the gradients of a repeated index in no fixed order.
        return start, visited, load * modulation.t().gather(0, length)

    def _diagonal_change(self) -> Tensor:
        """Change of the diagonal by its coefficients, ``[N]`` or ``[N, H]``."""
        return self.walks.diagonal_change @ monomials(self.modulation, self.key_modulation).t()

    def _matmul(self, x: Tensor) -> Tensor:
        product = self.factors.product(x)
        return product if self.walks.diagonal is None else product + self._diagonal_change()[..., None].to(x.dtype) * x
