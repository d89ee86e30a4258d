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


@pytest.mark.parametrize("bad", [-1, 4])
def test_columns_out_of_range_are_refused(bad):
    pattern = Pattern(torch.tensor([0, 1, 1]), torch.tensor([0, bad, 2]), 2, 4)
    with pytest.raises(ValueError, match=rf"must lie between 0 and 3 \(got .*{bad}"):
        _ = pattern.transposed
