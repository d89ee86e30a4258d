"""Sparse matrices whose entries are linear in learnable parameters, and the pair table of a product of two of them.

Reference: Reid et al., *Linear Transformer Topological Masking with Graph Random Features*, 2024, arXiv:2410.03462, Eq.
10. Walks are stored as (start, visited, length, load). The graph random features are then linear in the modulation
function ``f``, and the mask is a quadratic polynomial in it. Its coefficients depend only on the walks, so they are
computed once, and each layer only evaluates the polynomial.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import at_least_float32, coarsest_eps
from pyg_topomask.ops.segment import ragged_ranges, split_by_count
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.ops.walks.merge import monomial, num_monomials, revisits

# If the nodes of a pair are farther apart in memory on average, products miss the CPU's caches and rows are reordered.
_FAR_NODES = 2**14

# Products of walk entries that are sorted together; this bounds the memory of building a pair table (60 bytes each).
_TERMS_PER_BLOCK = 2**21


@dataclass(frozen=True)
class WalkTable:
    """Stored walks of a graph or batch: the tensors of :class:`~pyg_topomask.ops.walks.sample.Walks` on a ``Data``."""

    index: Tensor  # [2, nnz]: start, visited
    length: Tensor  # [nnz]
    load: Tensor  # [nnz]


class EntryTable:
    """Sparse matrix with the entries ``coeffs @ weights``: one sparse matrix for each head of ``weights``.

    Args:
        pattern: Positions of the entries.
        coeffs: Coefficients, shape ``[nnz, Q]``.
    """

    def __init__(self, pattern: Pattern, coeffs: Tensor) -> None:
        self.pattern, self.coeffs = pattern, coeffs

    def values(self, weights: Tensor) -> Tensor:
        """Entries for weights ``[Q]`` or ``[H, Q]``: shape ``[nnz]`` or ``[nnz, H]``; each head's entries are
        contiguous.
        """
        return (weights @ self.coeffs.t()).t() if weights.dim() == 2 else self.coeffs @ weights


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
            from the shared table ``left``; those of ``left`` if :obj:`None`.

    Raises:
        ValueError: If a walk is longer than ``max_length``.
    """

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
        for table in self._stored:
            if table.length.numel() > 0 and int(table.length.max()) > max_length:
                raise ValueError(
                    f"the stored walks reach {int(table.length.max())} hops, but the modulation function covers "
                    f"'max_length' = {max_length}. Give the mask and the transform the same 'max_length'"
                )

    @property
    def distinct_tables(self) -> list[WalkTable]:
        """The stored tables, unchanged: a single one if queries and keys share it."""
        return self._stored[:1] if self.shared else self._stored

    @property
    def num_entries(self) -> int:
        """Number of stored entries of both tables."""
        return sum(table.length.numel() for table in self._stored)

    @cached_property
    @torch.inference_mode(False)
    def num_terms(self) -> int:
        """Number of products of walk entries that meet in a node: an upper bound on the number of supported pairs."""
        if not self.symmetric:
            return self.num_entries
        hits = [torch.bincount(table.index[1], minlength=self.num_nodes) for table in self._stored]
        return int(hits[0] @ hits[1])

    @cached_property
    @torch.inference_mode(False)
    def pairs_by_row(self) -> Tensor:
        """Upper bound on the supported pairs of each row, shape ``[N]``."""
        left, right = self._stored[0], self._stored[-1]
        terms = torch.ones_like(left.index[1], dtype=torch.long)
        if self.symmetric:
            terms = torch.bincount(right.index[1], minlength=self.num_nodes).index_select(0, left.index[1])
        return terms.new_zeros(self.num_nodes).index_add(0, left.index[0], terms).clamp(max=self.num_nodes)

    @cached_property
    def row_terms(self) -> int:
        """Upper bound on the supported pairs of one row."""
        return int(self.pairs_by_row.max()) if self.num_nodes else 0

    @cached_property
    @torch.inference_mode(False)
    def absolute(self) -> WalkProduct:
        """The same walks with absolute loads and coefficients; the object itself if none is negative."""
        numbers = [table.load for table in self.distinct_tables]
        numbers += [] if self.diagonal is None else [self.diagonal]
        if all(number.numel() == 0 or bool(number.min() >= 0) for number in numbers):
            return self
        left, *right = (WalkTable(table.index, table.length, table.load.abs()) for table in self.distinct_tables)
        second = None if not self.symmetric else right[0] if right else left
        diagonal = None if self.diagonal is None else self.diagonal.abs()
        return WalkProduct(left, second, self.num_nodes, self.max_length, self.eps, diagonal)

    @cached_property
    @torch.inference_mode(False)
    def squared_norms(self) -> Tensor:
        r"""Coefficients ``[N, Q]`` of the diagonal of :math:`\Phi_1 \Phi_1^\top`."""
        start, visited = self._sorted[0].index
        length, load = self._sorted[0].length, self._sorted[0].load.double()
        own = revisits(start, start * self.num_nodes + visited, length, load, self.num_nodes, self.max_length)
        return own.to(self._sorted[0].load)

    @cached_property
    @torch.inference_mode(False)
    def diagonal_change(self) -> Tensor:
        """What `diagonal` adds to `squared_norms`, as coefficients ``[N, Q]``."""
        assert self.diagonal is not None
        return self.diagonal - self.squared_norms

    @cached_property
    @torch.inference_mode(False)
    def _sorted(self) -> list[WalkTable]:
        tables = [_sorted_walks(table, self.num_nodes, self.max_length) for table in self.distinct_tables]
        return tables * 2 if self.shared else tables

    @cached_property
    @torch.inference_mode(False)
    def left(self) -> EntryTable:
        r"""Entries of :math:`\Phi_1`, linear in ``f``."""
        return _merge_lengths(self._sorted[0], self.num_nodes, self.max_length)

    @cached_property
    @torch.inference_mode(False)
    def right(self) -> EntryTable | None:
        r"""Entries of :math:`\Phi_2`, linear in ``f``; :obj:`None` for the identity."""
        if self.shared or not self.symmetric:
            return self.left if self.shared else None
        return _merge_lengths(self._sorted[1], self.num_nodes, self.max_length)

    @cached_property
    @torch.inference_mode(False)
    def pairs(self) -> EntryTable:
        """Entries of the mask as a polynomial in ``f``, which is evaluated at `pair_weights`."""
        if not self.symmetric:
            return self.left
        left, right = self._sorted
        index, coeffs = pair_table(left, right, self.num_nodes, self.max_length)
        if self.diagonal is not None:
            coeffs = with_diagonal(index, coeffs, self.diagonal)
        return entry_table(index, coeffs, self.num_nodes)

    def pair_weights(self, modulation: Tensor) -> Tensor:
        """The monomials of ``f`` for the coefficients of `pairs`, shape ``[Q]`` or ``[H, Q]``."""
        return monomials(modulation) if self.symmetric else modulation


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


def with_diagonal(index: Tensor, coeffs: Tensor, diagonal: Tensor) -> Tensor:
    """Coefficients ``[P, Q]`` of pairs ``[2, P]``, with those of the diagonal replaced by ``diagonal [N, Q]``."""
    on = index[0] == index[1]
    return torch.where(on[:, None], diagonal.to(coeffs.dtype).index_select(0, index[0]), coeffs)


@once_per_batch
def stored_pairs(index: Tensor, coeffs: Tensor, num_nodes: int) -> EntryTable:
    """Pair table that a transform has stored on the graph, with its row pointers."""
    if bool((index[0].diff() < 0).any()):
        order = index[0].argsort(stable=True)
        index, coeffs = index[:, order], coeffs[order]
    return entry_table(index.clone(), coeffs, num_nodes)


def entry_table(index: Tensor, coeffs: Tensor, num_nodes: int) -> EntryTable:
    """Table of pairs sorted by row. Its rows are reordered if the nodes of pairs are far apart in memory.

    Reordering nodes by reverse Cuthill-McKee made a step on a million nodes in random order 3 times faster.

    Args:
        index: Pairs, shape ``[2, P]``, sorted by row.
        coeffs: Coefficients, shape ``[P, Q]``.
        num_nodes: ``N``.
    """
    pattern, entry_order = _near_pattern(index, num_nodes)
    return EntryTable(pattern, coeffs if entry_order is None else coeffs[entry_order])


@torch.compiler.disable
def sparse_product(left: Pattern, value: Tensor, right: Pattern, other: Tensor) -> tuple[Pattern, Tensor]:
    r"""Support and entries of :math:`\Phi_1 \Phi_2^\top` on CPU, without a gradient; far faster than `join`.

    Args:
        left, right: Patterns of the factors, ``[N', N]`` and ``[N, N]``.
        value, other: Entries of the factors, shape ``[nnz]``.

    Returns:
        Pattern of ``P`` pairs, if ``N' = N`` reordered where they are far apart in memory, and the entries, ``[P]``.
    """
    product = _scipy_matrix(left, value) @ _scipy_matrix(right, other).T.tocsr()
    row = torch.repeat_interleave(torch.from_numpy(np.diff(product.indptr)))
    col, entries = torch.from_numpy(product.indices).to(row), torch.from_numpy(product.data)
    if left.num_rows != right.num_rows:
        return Pattern(row, col, left.num_rows, right.num_rows), entries
    pattern, entry_order = _near_pattern(torch.stack([row, col]), left.num_rows)
    return pattern, entries if entry_order is None else entries[entry_order]


def _scipy_matrix(pattern: Pattern, value: Tensor) -> csr_matrix:
    shape = (pattern.num_rows, pattern.num_cols)
    (value,) = at_least_float32(value.detach())  # SciPy does not support bfloat16
    return csr_matrix((value.numpy(), pattern.col.numpy(), pattern.rowptr.numpy()), shape=shape)


def _near_pattern(index: Tensor, num_nodes: int) -> tuple[Pattern, Tensor | None]:
    """Pattern of pairs sorted by row, reordered if pairs are far apart; and the order of its entries if it was
    reordered.
    """
    far = index.device.type == "cpu" and _mean_distance(index) > _FAR_NODES
    order = _nearby_order(index, num_nodes) if far else None
    if order is not None:
        moved = order.argsort()[index.long()]
        if _mean_distance(moved) < _mean_distance(index) / 2:
            entry_order = (moved[0] * num_nodes + moved[1]).argsort()
            row, col = moved[:, entry_order]
            return Pattern(row, col, num_nodes, num_nodes, order), entry_order
    return Pattern(index[0], index[1], num_nodes, num_nodes), None


def _mean_distance(index: Tensor) -> float:
    return float((index[0] - index[1]).abs().double().mean()) if index.numel() else 0.0


def _nearby_order(index: Tensor, num_nodes: int) -> Tensor:
    """Order of the nodes that brings neighbours close to each other, shape ``[N]``."""
    row, col = index.numpy()
    adjacency = csr_matrix((np.ones(row.size, dtype=np.int8), (row, col)), shape=(num_nodes, num_nodes))
    return torch.from_numpy(reverse_cuthill_mckee(adjacency).astype(np.int64))


def monomials(modulation: Tensor) -> Tensor:
    """``f_a f_b`` for all ``a ≤ b``, shape ``[…, Q]`` with ``Q = (K + 1)(K + 2) / 2`` in the order of `monomial`."""
    high, low = torch.tril_indices(modulation.size(-1), modulation.size(-1), device=modulation.device)
    # Each entry of the outer product is used once: threads add the gradients of a repeated index in no fixed order.
    return (modulation[..., :, None] * modulation[..., None, :])[..., high, low]


def pair_table(left: WalkTable, right: WalkTable, num_nodes: int, max_length: int) -> tuple[Tensor, Tensor]:
    r"""Support of :math:`\hat M = \Phi_1 \Phi_2^\top` and its coefficients in the products of ``f``.

    .. math:: \hat M_{ij} = \sum_{a \le b} f_a f_b\, C_{ij}^{ab}, \qquad
        C_{ij}^{ab} = \sum_u \ell_{iua} \ell'_{jub} \;(+\; \ell_{iub} \ell'_{jua} \text{ if } a \ne b)

    Cost: one sort of the :math:`\sum_u |\{(i, a)\}| \cdot |\{(j, b)\}|` products of entries that meet in a node, done
    in blocks of rows.

    Args:
        left, right: Walks of queries and keys, sorted by start.
        num_nodes: ``N``.
        max_length: Longest walk.

    Returns:
        index: Pairs (query, key), sorted, shape ``[2, P]``, int64.
        coeffs: Coefficients in the order of `monomials`, shape ``[P, Q]``.
    """
    size = num_monomials(max_length)
    visited, order = right.index[1].sort(stable=True)
    other = WalkTable(right.index[:, order], right.length[order], right.load[order])
    first = torch.searchsorted(visited, left.index[1])
    meets = torch.searchsorted(visited, left.index[1], right=True) - first  # [nnz], partners of each left entry
    pairs, coeffs = [], []
    for a, b in _row_blocks(left.index[0], meets, num_nodes):
        owner, right_entry = ragged_ranges(first[a:b], meets[a:b])
        left_entry = owner + a
        pair = left.index[0][left_entry] * num_nodes + other.index[0][right_entry]
        code = monomial(left.length[left_entry], other.length[right_entry])
        pair, term_order = pair.sort(stable=True)
        pair, slot = torch.unique_consecutive(pair, return_inverse=True)
        table = left.load.new_zeros(pair.numel() * size)
        product = left.load[left_entry] * other.load[right_entry]
        table.index_add_(0, slot * size + code[term_order], product[term_order])
        pairs.append(pair)
        coeffs.append(table.view(-1, size))
    if not pairs:
        return left.index.new_zeros(2, 0), left.load.new_zeros(0, size)
    pair = torch.cat(pairs)
    return torch.stack([pair // num_nodes, pair % num_nodes]), torch.cat(coeffs)


def _row_blocks(row: Tensor, terms: Tensor, num_nodes: int) -> list[tuple[int, int]]:
    """Ranges of entries that split ``row`` only between rows, each with about ``_TERMS_PER_BLOCK`` terms."""
    rowptr = torch.searchsorted(row, torch.arange(num_nodes + 1, device=row.device))
    of_row = torch.cat([terms.new_zeros(1), terms.cumsum(0)])[rowptr].diff()
    bounds = rowptr[list(accumulate(split_by_count(of_row, _TERMS_PER_BLOCK), initial=0))].tolist()
    return [(a, b) for a, b in pairwise(bounds) if b > a]


def _sorted_walks(table: WalkTable, num_nodes: int, max_length: int) -> WalkTable:
    """Widen the stored types and sort by (start, visited, length), since relabelling nodes may have changed the
    order.
    """
    index, length = table.index.long(), table.length.long()
    key = (index[0] * num_nodes + index[1]) * (max_length + 1) + length
    if index.is_cuda or bool((key.diff() < 0).any()):
        order = key.argsort(stable=True)
    else:
        return WalkTable(index, length, table.load)
    return WalkTable(index[:, order], length[order], table.load[order])


def _merge_lengths(table: WalkTable, num_nodes: int, max_length: int) -> EntryTable:
    """Graph random features as an :class:`EntryTable` in ``f``: one entry per (start, visited)."""
    pattern, entry = Pattern.merge(*table.index, num_nodes, num_nodes)
    coeffs = table.load.new_zeros(pattern.nnz * (max_length + 1))
    coeffs.index_add_(0, entry * (max_length + 1) + table.length, table.load)
    return EntryTable(pattern, coeffs.view(-1, max_length + 1))


def join(left: Pattern, right: Pattern) -> tuple[Pattern, Tensor, Tensor, Tensor]:
    """Support of the product of a sparse matrix with the transpose of another, and the terms of each entry.

    Args:
        left: Pattern of :math:`\\Phi_1`, ``[N, U]``.
        right: Pattern of :math:`\\Phi_2`, ``[N', U]``.

    Returns:
        The pattern of :math:`\\Phi_1 \\Phi_2^\\top`, ``[N, N']``; and, for each product of two entries that meet in a
        column, the left entry, the right entry and the entry of the result, each of shape ``[terms]``.
    """
    by_column, order = right.transposed
    column = left.col.long()
    first = by_column.rowptr[column].long()
    left_entry, right_entry = ragged_ranges(first, by_column.rowptr[column + 1].long() - first)
    right_entry = order.index_select(0, right_entry)
    row, col = left.row.index_select(0, left_entry), right.row.index_select(0, right_entry)
    pattern, entry = Pattern.merge(row, col, left.num_rows, right.num_rows)
    return pattern, left_entry, right_entry, entry
