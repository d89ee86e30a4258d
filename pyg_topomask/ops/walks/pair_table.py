r"""Pair tables: the entries of a mask of walks as polynomials in the modulation function ``f``.

Reference: Reid et al., *Linear Transformer Topological Masking with Graph Random Features*, 2024, arXiv:2410.03462, Eq.
10. Walks are stored as (start, visited, length, load). The graph random features are then linear in ``f``, and the mask
is a quadratic polynomial in it. Its coefficients depend only on the walks, so they are computed once, and each layer
only evaluates the polynomial.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pyg_topomask.checks import holds
from pyg_topomask.ops.memo import once_per_setting
from pyg_topomask.ops.products.factors import Meeting, TermCounts, join
from pyg_topomask.ops.segment import split_by_count
from pyg_topomask.ops.sparse import Combination, Pattern
from pyg_topomask.ops.walks.merge import WalkTable, monomial, num_products

# Number of terms that are merged together; this bounds the memory of building a pair table (60 bytes per term).
_TERMS_PER_BLOCK = 2**21

# Number of rows of coefficients that are reordered and transposed together, and of entries whose order is checked
# together.
_ROWS, _CHECKED = 2**14, 2**18


def check_walks(table: WalkTable, num_nodes: int, max_length: int) -> None:
    """Refuse stored walks that are not those of a graph of ``num_nodes`` nodes, or too long.

    Raises:
        ValueError: If tensors do not fit each other or are in different orders, a node does not exist, or a walk is
            longer than ``max_length``. On CUDA, the values are checked by an assertion, without waiting.
    """
    if not fits_together(table):
        raise ValueError(
            "stored walks need an index [2, nnz], lengths [nnz] and loads [nnz] (got "
            f"{', '.join(str(list(x.shape)) for x in (table.index, table.length, table.load))}): draw them again"
        )
    if table.length.numel() == 0:
        return
    (low, high), (shortest, longest) = table.index.aminmax(), table.length.aminmax()
    away = ((table.length == 0) & (table.index[0] != table.index[1])).any()
    fits = (low >= 0) & (high < num_nodes) & (shortest >= 0) & (longest <= max_length) & ~away
    if holds(fits, "stored walks have nodes or lengths that do not exist: draw them again"):
        return
    if low < 0 or high >= num_nodes:
        raise ValueError(
            f"stored walks name node {int(low if low < 0 else high)}, but nodes are 0 to {num_nodes - 1}: draw them "
            "again on this graph"
        )
    if shortest < 0:
        raise ValueError(f"stored walks have a length of {int(shortest)} hops: draw them again")
    if away:
        raise ValueError("stored walks of 0 hops end at other nodes: are nodes and lengths in the same order?")
    raise ValueError(
        f"the stored walks reach {int(longest)} hops, but the modulation function covers 'max_length' = {max_length}. "
        "Give the mask and the transform the same 'max_length'"
    )


def fits_together(table: WalkTable) -> bool:
    """Whether a table has a start, a visited node, a length and a load for each entry."""
    size = table.length.numel()
    return table.index.shape == (2, size) and table.length.shape == table.load.shape == (size,)


class EntryTable:
    """Sparse matrix with the entries ``coeffs @ weights``: one sparse matrix for each head of ``weights``.

    Args:
        pattern: Positions of the entries.
        coeffs: Coefficients, shape ``[nnz, Q]``. They are stored column by column, as compiled attention reads them.
        entry_order: Row of ``coeffs`` of each entry, shape ``[nnz]``; the same number by default.
    """

    def __init__(self, pattern: Pattern, coeffs: Tensor, entry_order: Tensor | None = None) -> None:
        self.pattern, self.coeffs = pattern, coeffs
        if entry_order is None and coeffs.t().is_contiguous():
            return
        stored = coeffs.new_empty(coeffs.size(1), coeffs.size(0))
        for first in range(0, coeffs.size(0), _ROWS):  # a part stays in the cache, and needs no second copy of all
            rows = slice(first, first + _ROWS)
            given = coeffs[rows] if entry_order is None else coeffs.index_select(0, entry_order[rows])
            stored[:, rows] = given.t()
        self.coeffs = stored.t()

    def values(self, weights: Tensor) -> Tensor:
        """Entries ``[nnz]`` or ``[nnz, H]`` for weights ``[Q]`` or ``[H, Q]``; each head's entries are contiguous."""
        return Combination(self.coeffs, weights).values


def monomials(modulation: Tensor, keys: Tensor | None = None) -> Tensor:
    """``f_a f_b`` for all ``a ≤ b``, shape ``[…, Q]`` with ``Q = (K + 1)(K + 2) / 2`` in the order of `monomial`.

    With a function ``g`` of the keys, ``(f_a g_b + f_b g_a) / 2``, for coefficients that are symmetric in ``a, b``.
    """
    products = modulation[..., :, None] * (modulation if keys is None else keys)[..., None, :]
    products = products if keys is None else (products + products.mT) / 2
    # Each entry of the outer product is used once: threads add the gradients of a repeated index in no fixed order.
    return products.flatten(-2).index_select(-1, _lower(modulation.size(-1), modulation.device))


@once_per_setting(128)
def _lower(size: int, device: torch.device) -> Tensor:
    """Positions of the entries on and below the diagonal of a square matrix whose rows follow each other."""
    row, col = torch.tril_indices(size, size, device="cpu")
    return (row * size + col).to(device, non_blocking=True)


def sorted_pair_table(
    left: WalkTable,
    right: WalkTable,
    num_nodes: int,
    max_length: int,
    counts: Callable[[], TermCounts] | None = None,
    ordered: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Support of :math:`\hat M = \Phi_1 \Phi_2^\top` and its coefficients in the products of ``f``.

    .. math:: \hat M_{ij} = \sum_{a \le b} f_a f_b\, C_{ij}^{ab}, \qquad
        C_{ij}^{ab} = \sum_u \ell_{iua} \ell'_{jub} \;(+\; \ell_{iub} \ell'_{jua} \text{ if } a \ne b)

    Cost: the :math:`\sum_u |\{(i, a)\}| \cdot |\{(j, b)\}|` products of entries that meet in a node, which this
    function sorts in blocks of rows. `compiled.pair_table` adds them up, in a fourth of the time.

    Args:
        left, right: Walks of queries and keys, sorted by start; integers of any size.
        num_nodes: ``N``.
        max_length: Longest walk.
        counts: Function that returns the counts of the products, if they are known.
        ordered: Whether keys have a function ``g`` of their own: then every product :math:`f_a g_b` has a coefficient.

    Returns:
        index: Pairs (query, key), sorted, shape ``[2, P]``, int32.
        coeffs: Coefficients in the order of `monomials`, or row by row of the matrix ``f_a g_b``, shape ``[P, Q]``.
    """
    size = num_products(max_length, ordered)
    queries, keys = (Pattern(t.index[0], t.index[1], num_nodes, num_nodes) for t in (left, right))
    pairs, coeffs = [left.index.new_zeros(2, 0, dtype=torch.int32)], [left.load.new_zeros(0, size)]
    terms = Meeting(queries, keys).counts if counts is None else counts()
    fits = terms.total <= _TERMS_PER_BLOCK  # then CUDA waits neither for rows nor for terms of parts
    rows = [num_nodes] if fits else split_by_count(terms.by_row, _TERMS_PER_BLOCK)
    for start, stop in pairwise(accumulate(rows, initial=0)):
        part, entries = queries.rows(start, stop)
        pattern, query, key, entry = join(part, keys, terms.total if fits else None)
        query = query + entries.start
        a, b = left.length[query].long(), right.length[key].long()
        code = a * (max_length + 1) + b if ordered else monomial(a, b)
        table = left.load.new_zeros(pattern.nnz * size)
        table.index_add_(0, entry * size + code, left.load[query] * right.load[key])
        pairs.append(torch.stack([pattern.row + start, pattern.col]))
        coeffs.append(table.view(-1, size))
    return torch.cat(pairs, dim=1), torch.cat(coeffs)


def sorted_walks(table: WalkTable, num_nodes: int, max_length: int) -> WalkTable:
    """Walks sorted by (start, visited, length), an order that relabelling nodes may have changed; the table itself if
    it is sorted.
    """

    def keys(some: slice) -> Tensor:
        start, visited = table.index[:, some].long()
        return (start * num_nodes + visited) * (max_length + 1) + table.length[some].long()

    parts = range(0, table.length.numel(), _CHECKED)
    if not table.index.is_cuda and all(bool((keys(slice(a, a + _CHECKED + 1)).diff() >= 0).all()) for a in parts):
        return table
    order = keys(slice(None)).argsort(stable=True)
    return WalkTable(table.index[:, order], table.length[order], table.load[order])


def merge_lengths(table: WalkTable, num_nodes: int, max_length: int) -> EntryTable:
    """Graph random features as an :class:`EntryTable` in ``f``: one entry per (start, visited)."""
    pattern, entry = Pattern.merge(*table.index, num_nodes, num_nodes)
    coeffs = table.load.new_zeros(pattern.nnz * (max_length + 1))
    coeffs.index_add_(0, entry * (max_length + 1) + table.length, table.load)
    return EntryTable(pattern, coeffs.view(-1, max_length + 1))
