"""The mask of graph random features."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.sparse_factor import Factor, SparseFactorOperator, count_pairs
from pyg_topomask.ops.blocks import BlockLayout, Entries, product_blocks
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.ops.walks.product import EntryTable, WalkProduct, WalkTable


class GRFOperator(MaskOperator):
    r"""Estimate :math:`\hat M = \Phi_1 \Phi_2^\top` of a power series of the adjacency, from stored random walks.

    :math:`\Phi_{iv} = \sum_\ell f_\ell\, \mathrm{load}(i, v, \ell)`. On the support of the mask the entries are a
    polynomial in ``f`` whose coefficients the walks alone decide (`ops.pairs`).

    Reference: Reid et al. 2024, arXiv:2410.03462, Eq. 10.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(\mathrm{nnz}\, C)`.

    Args:
        walks: Structure of the two walk tables, built once per batch.
        modulation: :math:`f`, shape ``[K + 1]``, or ``[H, K + 1]`` for one mask per head.
        pair_table: Pair table that a transform stored; built from the walks where it is needed if :obj:`None`.
    """

    has_blocks = True

    def __init__(self, walks: WalkProduct, modulation: Tensor, pair_table: EntryTable | None = None) -> None:
        self.walks, self.modulation, self._stored = walks, modulation, pair_table
        self.num_nodes, self.heads = walks.num_nodes, modulation.size(0) if modulation.dim() == 2 else None
        self.dtype, self.device = modulation.dtype, modulation.device

    @property
    def factors(self) -> SparseFactorOperator:
        """The mask as its two sparse factors, formed anew: a kept one would break recomputing a slice."""
        left, right = (
            None if table is None else Factor(table.pattern, table.values(self.modulation))
            for table in (self.walks.left, self.walks.right)
        )
        return SparseFactorOperator.from_factors(left, right, self.num_nodes)

    @property
    def T(self) -> SparseFactorOperator:
        return self.factors.T

    @property
    def work(self) -> int:
        return self.walks.num_entries

    @property
    def num_pairs(self) -> int:
        if self._stored is not None:
            return self._stored.pattern.nnz
        return count_pairs(self.walks.num_terms, self.work, lambda: self.walks.pairs.pattern)

    def pairs(self) -> tuple[Pattern, Tensor]:
        table = self.walks.pairs if self._stored is None else self._stored
        return table.pattern, table.values(self.walks.pair_weights(self.modulation))

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        left, *right = (self._entries(table) for table in self.walks.distinct_tables)
        second = None if not self.walks.symmetric else right[0] if right else left
        return product_blocks(layout, left, second)

    def _entries(self, table: WalkTable) -> Entries:
        load = table.load.to(self.dtype) if self.heads is None else table.load.to(self.dtype)[:, None]
        start, visited = table.index
        return start, visited, load * self.modulation.t()[table.length.int()]

    def _matmul(self, x: Tensor) -> Tensor:
        return self.factors @ x
