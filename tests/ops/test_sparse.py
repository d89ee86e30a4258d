"""Patterns of sparse matrices and their transposed order."""

import pytest
import torch

from pyg_topomask.ops.sparse import Pattern


@pytest.mark.parametrize(("nnz", "rows", "cols"), [(0, 3, 2), (1, 1, 1), (40, 7, 5), (300, 50, 4), (60, 9, 90)])
def test_the_transposed_order_is_that_of_a_stable_sort(nnz, rows, cols):
    """With rows and columns that have no entry, and entries that are there several times."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(rows, (nnz,), generator=generator).sort()[0]
    col = torch.randint(cols, (nnz,), generator=generator)
    transposed, order = Pattern(row, col, rows, cols).transposed
    assert torch.equal(order, col.sort(stable=True)[1])
    assert torch.equal(transposed.row, col.int()[order])
    assert torch.equal(transposed.col, row.int()[order])
    assert (transposed.num_rows, transposed.num_cols) == (cols, rows)
    assert torch.equal(transposed.rowptr, torch.searchsorted(col.sort()[0], torch.arange(cols + 1)).int())


def test_more_entries_than_32_bits_can_count_are_refused():
    many = torch.zeros(1, dtype=torch.int32).expand(2**31)  # takes no memory
    with pytest.raises(ValueError, match=r"at most 2\^31 - 1 entries.*got 2,147,483,648"):
        Pattern(None, many, 1, 1, rowptr=torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="divide the graph into parts"):
        Pattern(torch.zeros(1), torch.zeros(1), 1, 2**31)


@pytest.mark.parametrize("bad", [-1, 4])
def test_columns_out_of_range_are_refused(bad):
    pattern = Pattern(torch.tensor([0, 1, 1]), torch.tensor([0, bad, 2]), 2, 4)
    with pytest.raises(ValueError, match=rf"must lie between 0 and 3 \(got .*{bad}"):
        _ = pattern.transposed


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("nnz", "rows", "cols"), [(0, 3, 2), (0, 0, 0), (1, 1, 1), (40, 7, 5), (60, 9, 90)])
def test_merge_lists_every_pair_once_in_order(nnz, rows, cols, in_order):
    generator = torch.Generator().manual_seed(0)
    row, col = (torch.randint(max(size, 1), (nnz,), generator=generator).tolist() for size in (rows, cols))
    pairs = sorted(zip(row, col)) if in_order else list(zip(row, col))
    row, col = torch.tensor(pairs, dtype=torch.int32).view(-1, 2).t()
    pattern, entry = Pattern.merge(row, col, rows, cols)
    distinct = sorted(set(pairs))
    assert list(zip(pattern.row.tolist(), pattern.col.tolist())) == distinct
    assert entry.tolist() == [distinct.index(pair) for pair in pairs]


def test_merge_does_not_overflow_32_bit_indices():
    size = 2**17
    row = torch.tensor([size - 1, 0, size - 1], dtype=torch.int32)
    pattern, entry = Pattern.merge(row, row.flip(0), size, size)
    assert (pattern.row.tolist(), pattern.col.tolist()) == ([0, size - 1], [0, size - 1])
    assert entry.tolist() == [1, 0, 1]


def test_rows_of_a_pattern():
    row, col = torch.tensor([0, 0, 2, 2, 3]), torch.tensor([1, 3, 0, 2, 1])
    pattern = Pattern(row, col, 4, 4)
    part, entries = pattern.rows(1, 3)
    assert (part.row.tolist(), part.col.tolist(), part.rowptr.tolist()) == ([1, 1], [0, 2], [0, 0, 2])
    assert (entries, part.num_rows, part.num_cols) == (slice(2, 4), 2, 4)
    assert pattern.rows(2, 2)[0].nnz == 0
