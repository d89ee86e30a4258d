r"""Products :math:`\Phi_1 \Phi_2^\top` of two sparse factors: their support, its size and its entries."""

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from pyg_topomask.ops.memo import cached, kept_property
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.products import compiled
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.sparse import Pattern, row_pointers, to_numpy

# Rows are reordered if the nodes of a pair are farther apart on average, because products then miss the CPU's caches.
# For 513,172 pairs of 32,768 nodes, 11,000 apart, this takes 40 ms once. A step took 29 ms instead of 41 ms on a CPU
# with small caches, and 2 ms less on one with 32 MB.
FAR_NODES = 2**12

# Number of entries that are counted or compared together, so that intermediate results stay in the cache.
_ENTRIES = 2**18


class TermCounts:
    r"""Counts of the terms of :math:`\Phi_1 \Phi_2^\top`: pairs of an entry of each factor that meet in a column.

    Args:
        row, col: Entries of :math:`\Phi_1` ``[N, U]``, shape ``[nnz]``, in any order.
        right_col: Columns of the entries of :math:`\Phi_2` ``[N', U]``, in any order.
        sizes: ``(N, U, N')``.
    """

    def __init__(self, row: Tensor, col: Tensor, right_col: Tensor, sizes: tuple[int, int, int]) -> None:
        num_rows, num_cols, num_pairs = sizes
        by_column = torch.zeros(num_cols, dtype=torch.int64, device=right_col.device)
        by_column.index_add_(0, right_col, torch.ones_like(right_col, dtype=torch.int64))  # CUDA waits in bincount
        self.by_row = by_column.new_zeros(num_rows)
        """Number of terms of each row, shape ``[N]``."""
        for rows, cols in zip(row.split(_ENTRIES), col.split(_ENTRIES)):
            self.by_row.index_add_(0, rows, by_column.index_select(0, cols))
        self.pairs_by_row = self.by_row.clamp(max=num_pairs)
        """Upper bound on the pairs of each row, shape ``[N]``."""

    @cached
    def total(self) -> int:
        """Number of terms: an upper bound on the number of pairs."""
        return int(self.by_row.sum())


class Meeting:
    r"""The terms of :math:`\Phi_1 \Phi_2^\top`, which a mask and its bounding mask share.

    Args:
        left: Pattern of :math:`\Phi_1`, ``[N, U]``.
        right: Pattern of :math:`\Phi_2`, ``[N', U]``.
    """

    def __init__(self, left: Pattern, right: Pattern) -> None:
        self.left, self.right = left, right

    @kept_property
    def counts(self) -> TermCounts:
        """Counts of the terms."""
        left, right = self.left, self.right
        return TermCounts(left.row, left.col, right.col, (left.num_rows, left.num_cols, right.num_rows))

    @kept_property
    def joined(self) -> tuple[Pattern, Tensor, Tensor, Tensor]:
        """The pairs and the two entries of each term, as returned by `join`."""
        return join(self.left, self.right, self.counts.total if self.left.col.is_cuda else None)


def join(left: Pattern, right: Pattern, num_terms: int | None = None) -> tuple[Pattern, Tensor, Tensor, Tensor]:
    r"""Support of :math:`\Phi_1 \Phi_2^\top`, and the terms of each pair; arguments as in :class:`Meeting`.

    With the number of terms, CUDA does not wait for it.

    Returns:
        The pattern ``[N, N']``; and, for each term, the left entry, the right entry and the entry of the result, each
        of shape ``[terms]``. Terms are sorted by left entry.
    """
    by_column, order = right.transposed
    first, last = (by_column.rowptr.long().index_select(0, left.col + end) for end in (0, 1))
    left_entry, right_entry = ragged_ranges(first, last - first, num_terms)
    right_entry = order.index_select(0, right_entry)
    row, col = left.row.index_select(0, left_entry), right.row.index_select(0, right_entry)
    pattern, entry = Pattern.merge(row, col, left.num_rows, right.num_rows)
    return pattern, left_entry, right_entry, entry


@torch.compiler.disable
def sparse_product(left: Pattern, value: Tensor, right: Pattern, other: Tensor) -> tuple[Pattern, Tensor]:
    r"""Support and entries of :math:`\Phi_1 \Phi_2^\top` on CPU, without a gradient; much faster than `join`.

    Args:
        left, right: Patterns of :math:`\Phi_1` ``[N', U]`` and :math:`\Phi_2` ``[N, U]``.
        value, other: Entries of the factors, shape ``[nnz]``.

    Returns:
        Pattern of ``P`` pairs sorted by row and column, and the entries, ``[P]``. If ``N' = N``, rows may be reordered
        (`near_pattern`).
    """
    multiply = _scipy_product if compiled.refuses(value, other) is not None else compiled.product
    pattern, entries, distance = multiply(left, value, right, other)
    pattern, entries = pattern.padded(entries)
    if left.num_rows != right.num_rows or distance <= FAR_NODES:
        return pattern, entries
    pattern, entry_order = near_pattern(torch.stack([pattern.row, pattern.col]), left.num_rows)
    return pattern, entries if entry_order is None else entries[entry_order]


def _scipy_product(left: Pattern, value: Tensor, right: Pattern, other: Tensor) -> tuple[Pattern, Tensor, float]:
    """`sparse_product` before rows are reordered, and the mean distance between row and column."""
    # SciPy sorts the columns of a row only when it transposes a matrix.
    product = (_scipy_matrix(right, other) @ _scipy_matrix(left, value).T.tocsr()).T.tocsr()
    row = torch.repeat_interleave(torch.from_numpy(np.diff(product.indptr)))
    col, entries = torch.from_numpy(product.indices).to(row), torch.from_numpy(product.data)
    return Pattern(row, col, left.num_rows, right.num_rows), entries, mean_distance(row, col)


def _scipy_matrix(pattern: Pattern, value: Tensor) -> csr_matrix:
    return pattern.scipy(to_numpy(*at_least_float32(value.detach())))  # SciPy does not support bfloat16


def near_pattern(index: Tensor, num_nodes: int) -> tuple[Pattern, Tensor | None]:
    """Pattern of pairs ``[2, P]`` sorted by row, and the order of its entries if rows were reordered, else None.

    Rows are reordered, by reverse Cuthill-McKee, if the nodes of pairs are far apart in memory. This made a step on a
    million nodes in random order 3 times as fast.
    """
    # Rows of pairs would double the memory of the pattern, and compiled attention does not read them.
    rowptr, col = row_pointers(index[0], num_nodes), index[1].to(torch.int32, copy=True)
    pattern = Pattern(None, col, num_nodes, num_nodes, rowptr=rowptr)
    given = mean_distance(index[0], index[1]) if index.device.type == "cpu" and num_nodes > FAR_NODES else 0
    if given > FAR_NODES:
        order = nearby_order(pattern)
        place = order.argsort()
        distance = mean_distance(place.index_select(0, index[0]), place.index_select(0, index[1]))
        if distance < given / 2:
            return _reordered(pattern, order, place)
    return pattern, None


def mean_distance(row: Tensor, col: Tensor) -> float:
    """Mean distance between the numbers of the nodes of pairs."""
    parts = zip(row.split(_ENTRIES), col.split(_ENTRIES))
    return sum(float((rows - cols).abs_().sum()) for rows, cols in parts) / max(row.numel(), 1)


def nearby_order(pattern: Pattern) -> Tensor:
    """Order of the nodes in which the nodes of a pair are close to each other, by reverse Cuthill-McKee, ``[N]``."""
    adjacency = pattern.scipy(np.ones(pattern.nnz, dtype=np.int8))
    return torch.from_numpy(reverse_cuthill_mckee(adjacency).astype(np.int64))


def _reordered(pattern: Pattern, order: Tensor, place: Tensor) -> tuple[Pattern, Tensor]:
    """Pattern whose row and column ``i`` are those of node ``order[i]``, and the entry of each of its entries.

    Two transpositions sort by counting: the first one by column, the second one by row.
    """
    places, size = to_numpy(place.int()), (pattern.num_rows, pattern.num_cols)
    given = np.arange(pattern.nnz), places[to_numpy(pattern.col)], to_numpy(pattern.rowptr)
    by_column = csr_matrix(given, shape=size).tocsc()
    by_row = csc_matrix((by_column.data, places[by_column.indices], by_column.indptr), shape=size).tocsr()
    rowptr, col = (torch.from_numpy(x).int() for x in (by_row.indptr, by_row.indices))
    return Pattern(None, col, *size, order, rowptr), torch.from_numpy(by_row.data)
