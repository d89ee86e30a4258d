"""Compiled products of sparse factors, against SciPy's and dense ones."""

import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import compiled, factors
from pyg_topomask.ops.products.factors import sparse_product
from pyg_topomask.ops.sparse import Pattern

pytestmark = pytest.mark.skipif(loader.missing("sparse"), reason="needs a C++ compiler")


def factor(rows, cols, share, dtype=torch.float64):
    """A random factor, with an entry of 0."""
    row, col = (torch.rand(rows, cols) < share).nonzero().t()
    value = torch.rand(row.numel(), dtype=dtype)
    value[:1] = 0
    return Pattern(row, col, rows, cols), value


def blocks_of(sizes, shares, dtype=torch.float64):
    """A random factor of a batch of graphs; the compiled function computes blocks with many entries as dense ones."""
    parts = [dense(*factor(size, size, share, dtype)) for size, share in zip(sizes, shares)]
    matrix = torch.block_diag(*parts)
    row, col = matrix.nonzero().t()
    return Pattern(row, col, *matrix.shape), matrix[row, col]


BATCH = (1, 33, 70, 3, 90, 16), (1.0, 0.3, 0.2, 0.0, 0.01, 0.9)
"""Sizes and shares of entries: of blocks that are computed as dense ones, and of others."""


def dense(pattern, value):
    out = value.new_zeros(pattern.num_rows, pattern.num_cols)
    return out.index_put((pattern.row.long(), pattern.col.long()), value)


def check(left, right):
    """The compiled product equals those of SciPy and of dense matrices."""
    pattern, entries, distance = compiled.product(*left, *right)
    wanted, values, mean = factors._scipy_product(*left, *right)
    for name in ("row", "col", "rowptr"):
        assert torch.equal(getattr(pattern, name), getattr(wanted, name))
    torch.testing.assert_close(entries, values)
    assert distance == pytest.approx(mean)
    torch.testing.assert_close(dense(pattern, entries), dense(*left) @ dense(*right).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "share"),
    [(5, 4, 6, 0.5), (150, 40, 130, 0.2), (150, 300, 130, 0.003), (70, 3, 70, 0.0), (0, 0, 0, 0.0)],
)
def test_equals_scipy_and_dense_products(rows, inner, columns, share, dtype):
    left, right = factor(rows, inner, share, dtype), factor(columns, inner, share, dtype)
    check(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_of_a_batch_equal_scipy_and_dense_products(dtype):
    left, right = blocks_of(*BATCH, dtype), blocks_of(*BATCH, dtype)
    check(left, right)


def test_an_entry_between_blocks_is_not_lost():
    node = torch.tensor([0, 19])  # the first and the last of two complete graphs of 10 nodes
    one = torch.block_diag(torch.rand(10, 10), torch.rand(10, 10)).double()
    other = one.index_put((node, node.flip(0)), torch.ones(2, dtype=torch.float64))
    for left, right in ((one, other), (other, one)):
        given = [(Pattern(*x.nonzero().t(), 20, 20), x[x != 0]) for x in (left, right)]
        pattern, entries, _ = compiled.product(*given[0], *given[1])
        torch.testing.assert_close(dense(pattern, entries), left @ right.t())


@pytest.mark.parametrize("make", [lambda: factor(300, 50, 0.1), lambda: blocks_of(*BATCH)], ids=["rows", "blocks"])
def test_threads_do_not_change_the_product(make):
    left, right, threads, found = make(), make(), torch.get_num_threads(), []
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            with limits.override(thread_work=0):
                found.append(compiled.product(*left, *right))
    finally:
        torch.set_num_threads(threads)
    for pattern, entries, distance in found[1:]:
        assert torch.equal(pattern.col, found[0][0].col)
        assert torch.equal(pattern.rowptr, found[0][0].rowptr)
        assert torch.equal(entries, found[0][1])
        assert distance == found[0][2]


def first_entries(sizes):
    return [sum(n * n for n in sizes[:graph]) for graph in range(len(sizes))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_blocks_equal_a_dense_product(dtype):
    sizes = [*BATCH[0], 0, 130]
    left, right = (blocks_of(sizes, [*BATCH[1], 0.0, 0.1], dtype) for _ in range(2))
    right = right[0], right[1] - 0.5  # signs are served
    flat = compiled.block_product(sizes, first_entries(sizes), *left, *right)
    wanted = (dense(*left) @ dense(*right).t()).t()
    parts = [wanted[a : a + n, a : a + n].flatten() for a, n in zip(torch.tensor([0, *sizes]).cumsum(0), sizes)]
    torch.testing.assert_close(flat, torch.cat(parts))


def test_threads_do_not_change_dense_blocks():
    given, threads, found = (*blocks_of(*BATCH), *blocks_of(*BATCH)), torch.get_num_threads(), []
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            with limits.override(thread_work=0):
                found.append(compiled.block_product(list(BATCH[0]), first_entries(BATCH[0]), *given))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@pytest.mark.parametrize("side", [0, 1])
def test_dense_blocks_of_joined_graphs_are_refused(side):
    sizes, given = [3, 4], [factor(7, 7, 0.0), factor(7, 7, 0.0)]
    assert compiled.block_product(sizes, [0, 9], *given[0], *given[1]).eq(0).all()
    given[side] = Pattern(torch.tensor([2]), torch.tensor([3]), 7, 7), torch.ones(1, dtype=torch.float64)
    assert compiled.block_product(sizes, [0, 9], *given[0], *given[1]) is None


def test_distant_nodes_are_reordered(monkeypatch):
    monkeypatch.setattr(factors, "_FAR_NODES", 8)
    node = torch.randperm(200)  # a path whose nodes are numbered at random
    row, col = torch.cat([node, node[:-1]]), torch.cat([node, node[1:]])
    order = (row * 200 + col).argsort()
    given = Pattern(row[order], col[order], 200, 200), torch.rand(399, dtype=torch.float64)
    pattern, entries = sparse_product(*given, *given)
    assert pattern.order is not None
    back = torch.empty_like(dense(pattern, entries))
    back[pattern.order[:, None], pattern.order] = dense(pattern, entries)
    torch.testing.assert_close(back, dense(*given) @ dense(*given).t())
