r"""The structure of the mask :math:`\Phi_1 \Phi_2^\top` of two walk tables, which all layers share."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask import plan as plans
from pyg_topomask.ops.memo import kept_property, once_per_batch
from pyg_topomask.ops.numerics import coarsest_eps
from pyg_topomask.ops.products.factors import TermCounts, near_pattern
from pyg_topomask.ops.walks import compiled, pair_table
from pyg_topomask.ops.walks.merge import WalkTable, monomial, revisits


class WalkProduct:
    r"""Structure of :math:`\Phi_1 \Phi_2^\top` for two walk tables: everything that does not depend on ``f``.

    Each part is built when it is first used.

    Args:
        left: Walks of the queries.
        right: Walks of the keys, which may be ``left`` itself. If :obj:`None`, the identity replaces :math:`\Phi_2`.
        num_nodes: ``N``.
        max_length: Longest walk that the modulation function covers.
        eps: Machine epsilon of the coarsest dtype in which the loads were stored; that of their dtype if :obj:`None`.
        diagonal: Coefficients of the diagonal in the products of ``f``, shape ``[N, Q]``, which replace those computed
            from the table ``left`` that queries and keys then share; those of ``left`` if :obj:`None`.

    Raises:
        ValueError: If the walks are not those of such a graph, or one is longer than ``max_length``.
    """

    of_host = ("counts",)

    def __init__(
        self,
        left: WalkTable,
        right: WalkTable | None,
        num_nodes: int,
        max_length: int,
        eps: float | None = None,
        diagonal: Tensor | None = None,
    ) -> None:
        self.diagonal = diagonal
        self.eps = torch.finfo(left.load.dtype).eps if eps is None else eps
        self.num_nodes, self.max_length, self.symmetric = num_nodes, max_length, right is not None
        self.shared = right is left
        self._stored = [table for table in (left, right) if table is not None]
        for table in self.distinct_tables:
            pair_table.check_walks(table, num_nodes, max_length)

    @property
    def distinct_tables(self) -> list[WalkTable]:
        """The stored tables, unchanged: a single one if queries and keys share it."""
        return self._stored[:1] if self.shared else self._stored

    @property
    def num_entries(self) -> int:
        """Number of stored entries of both tables."""
        return sum(table.length.numel() for table in self._stored)

    @kept_property
    def counts(self) -> TermCounts:
        """Counts of the products of walk entries that meet in a node."""
        start, visited = self._stored[0].index
        keys = self._stored[1].index[1] if self.symmetric else torch.arange(self.num_nodes, device=start.device)
        return TermCounts(start, visited, keys, (self.num_nodes,) * 3)

    @kept_property
    def T(self) -> "WalkProduct":
        """The walks of the transposed mask; the object itself if queries and keys share a table."""
        left, *right = self._stored
        if self.shared:
            return self
        flipped = WalkTable(left.index.flip(0), left.length, left.load)
        given = (right[0], left) if right else (flipped, None)
        return WalkProduct(given[0], given[1], self.num_nodes, self.max_length, self.eps)

    @kept_property
    def absolute(self) -> "WalkProduct":
        """The same walks with absolute loads and coefficients; the object itself if none is negative."""
        numbers = [table.load for table in self.distinct_tables]
        numbers += [] if self.diagonal is None else [self.diagonal]
        lowest = [number.min() for number in numbers if number.numel()]
        if not lowest or bool(torch.stack(lowest).min() >= 0):
            return self
        left, *right = (WalkTable(table.index, table.length, table.load.abs()) for table in self.distinct_tables)
        second = None if not self.symmetric else right[0] if right else left
        diagonal = None if self.diagonal is None else self.diagonal.abs()
        return WalkProduct(left, second, self.num_nodes, self.max_length, self.eps, diagonal)

    @kept_property
    def squared_norms(self) -> Tensor:
        r"""Coefficients ``[N, Q]`` of the diagonal of :math:`\Phi_1 \Phi_1^\top`."""
        walks = self._sorted(0)
        (start, visited), length, load = walks.index.long(), walks.length.long(), walks.load.double()
        own = revisits(start, start * self.num_nodes + visited, length, load, self.num_nodes, self.max_length)
        return own.to(walks.load)

    @kept_property
    def diagonal_change(self) -> Tensor:
        """Difference between `diagonal` and `squared_norms`, as coefficients ``[N, Q]``."""
        assert self.diagonal is not None
        return self.diagonal - self.squared_norms

    def _sorted(self, side: int) -> WalkTable:
        """Sorted walks of the queries (0) or the keys (1). Copies are not kept, because they take much memory."""
        return pair_table.sorted_walks(self._stored[side], self.num_nodes, self.max_length)

    @kept_property
    def left(self) -> pair_table.EntryTable:
        r"""Entries of :math:`\Phi_1`, linear in ``f``."""
        return pair_table.merge_lengths(self._sorted(0), self.num_nodes, self.max_length)

    @kept_property
    def right(self) -> pair_table.EntryTable | None:
        r"""Entries of :math:`\Phi_2`, linear in ``f``; :obj:`None` for the identity."""
        if self.shared:
            return self.left
        return pair_table.merge_lengths(self._sorted(1), self.num_nodes, self.max_length) if self.symmetric else None

    @kept_property
    def pairs(self) -> pair_table.EntryTable:
        """Entries of the mask as a polynomial in ``f``, which is evaluated at `pair_weights`."""
        return self._pairs(ordered=False) if self.symmetric else self.left

    @kept_property
    def ordered_pairs(self) -> pair_table.EntryTable:
        """The same as a polynomial in a function ``f`` of the queries and another one ``g`` of the keys."""
        return self._pairs(ordered=True)

    def _pairs(self, ordered: bool) -> pair_table.EntryTable:
        (left, right), sizes = self._stored, (self.num_nodes, self.max_length)
        if compiled.refuses(left.load) is None:
            index, coeffs = compiled.pair_table(left, right, *sizes, ordered)
        else:
            tables = self._sorted(0), self._sorted(1)
            with plans.on_grid(None):  # pairs of parts
                index, coeffs = pair_table.sorted_pair_table(*tables, *sizes, lambda: self.counts, ordered)
            del tables  # before more memory is needed
        if self.diagonal is not None:
            on, diagonal = index[0] == index[1], self._ordered(self.diagonal) if ordered else self.diagonal
            coeffs = torch.where(on[:, None], diagonal.to(coeffs.dtype).index_select(0, index[0]), coeffs)
        more = plans.padded(index.size(1)) - index.size(1)
        index, coeffs = pad(index, (0, more), value=self.num_nodes - 1), pad(coeffs.t(), (0, more)).t()
        pattern, order = near_pattern(index, self.num_nodes)
        return pair_table.EntryTable(pattern, coeffs, order)

    def _ordered(self, diagonal: Tensor) -> Tensor:
        """Coefficients of ``f_a g_b`` from those of ``f_a f_b``, which belong to both orders of ``a`` and ``b``."""
        length = torch.arange(self.max_length + 1, device=diagonal.device)
        a, b = torch.cartesian_prod(length, length).t()
        return diagonal[:, monomial(a, b)] * torch.where(a == b, 1.0, 0.5)

    def pair_weights(self, modulation: Tensor, keys: Tensor | None = None) -> Tensor:
        """The products of ``f``, and perhaps ``g``, for the coefficients of `pairs` or `ordered_pairs`, ``[Q]`` or
        ``[H, Q]``.
        """
        if keys is not None:
            return (modulation[..., :, None] * keys[..., None, :]).flatten(-2)
        return pair_table.monomials(modulation) if self.symmetric else modulation


@once_per_batch
def walk_product(
    index: Tensor,
    length: Tensor,
    load: Tensor,
    key_index: Tensor | None,
    key_length: Tensor | None,
    key_load: Tensor | None,
    num_nodes: int,
    max_length: int,
    dtype: torch.dtype,
    diagonal: Tensor | None = None,
) -> WalkProduct:
    """The :class:`WalkProduct` of stored tables, built once for all layers that read the same tensors.

    Its coefficients have the ``dtype`` of the modulation function, so that rounding does not lose accuracy.
    """
    left = WalkTable(index.clone(), length, load.to(dtype))
    right: WalkTable | None = left
    eps = coarsest_eps(load)
    if key_index is None or key_length is None or key_load is None:
        right = None
    elif key_index is not index or key_length is not length or key_load is not load:
        right = WalkTable(key_index.clone(), key_length, key_load.to(dtype))
        eps = coarsest_eps(load, key_load)
    return WalkProduct(left, right, num_nodes, max_length, eps, None if diagonal is None else diagonal.to(dtype))
