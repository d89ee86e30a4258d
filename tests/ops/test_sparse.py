"""Patterns of sparse matrices and their transposed order."""

import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops.sparse import Pattern, sampled_product, spmm
from tests.ops.compare import dense, with_gradients


def random_pattern(rows: int, cols: int, nnz: int) -> Pattern:
    """With rows and columns that have no entry, and entries that are there several times."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randint(rows, (nnz,), generator=generator).sort()[0]
    return Pattern(row, torch.randint(cols, (nnz,), generator=generator), rows, cols)


@pytest.mark.parametrize(("nnz", "rows", "cols"), [(0, 3, 2), (1, 1, 1), (40, 7, 5), (300, 50, 4), (60, 9, 90)])
def test_the_transposed_order_is_that_of_a_stable_sort(nnz, rows, cols):
    """With rows and columns that have no entry, and entries that are there several times."""
    pattern = random_pattern(rows, cols, nnz)
    col, (transposed, order) = pattern.col.long(), pattern.transposed
    assert torch.equal(order, col.sort(stable=True)[1])
    assert torch.equal(transposed.row, col.int()[order])
    assert torch.equal(transposed.col, pattern.row.int()[order])
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


@pytest.mark.parametrize("columns", [0, 1, 15, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "cols", "nnz"), [(7, 5, 20), (50, 90, 40), (3, 4, 0)])
def test_products_and_their_gradients_are_those_of_the_dense_matrix(rows, cols, nnz, dtype, columns):
    pattern = random_pattern(rows, cols, nnz)
    value = torch.randn(nnz, dtype=dtype, requires_grad=True)
    x = torch.randn(columns, cols, dtype=dtype).t().requires_grad_()  # not contiguous
    found, wanted = spmm(pattern, value, x), dense(pattern, value) @ x
    torch.testing.assert_close(with_gradients(found, (value, x)), with_gradients(wanted, (value, x)))


@pytest.mark.parametrize(("rows", "cols", "nnz", "heads"), [(7, 5, 20, 3), (50, 90, 40, 2), (6, 6, 9, 1), (3, 4, 0, 2)])
def test_a_product_by_head_is_that_of_each_head(rows, cols, nnz, heads):
    pattern = random_pattern(rows, cols, nnz)
    value = torch.randn(heads, nnz, dtype=torch.float64).t().requires_grad_()
    x = torch.randn(cols, heads, 3, dtype=torch.float64, requires_grad=True)
    found = spmm(pattern, value, x)
    wanted = torch.stack([spmm(pattern, value[:, h], x[:, h]) for h in range(heads)], dim=1)
    torch.testing.assert_close(with_gradients(found, (value, x)), with_gradients(wanted, (value, x)))
    left = torch.randn(rows, heads, 3, dtype=torch.float64)
    products = [sampled_product(pattern, left[:, h], x[:, h]) for h in range(heads)]
    torch.testing.assert_close(sampled_product(pattern, left, x), torch.stack(products, 1))


def test_more_entries_of_all_heads_than_32_bits_can_count_are_refused():
    pattern = random_pattern(9, 7, 30)
    with limits.override(entries=100):
        spmm(pattern, torch.ones(30, 3), torch.ones(7, 3, 2))
    with limits.override(entries=100), pytest.raises(ValueError, match="120"):
        spmm(pattern, torch.ones(30, 4), torch.ones(7, 4, 2))
