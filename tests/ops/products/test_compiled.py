"""Compiled products of sparse factors, against SciPy's and dense ones."""

import pytest
import torch

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import compiled, factors
from pyg_topomask.ops.products.factors import sparse_product
from pyg_topomask.ops.sparse import Pattern
from tests.ops.compare import dense
from tests.threads import assert_threads_change_nothing

pytestmark = pytest.mark.skipif(loader.missing("sparse"), reason="needs a C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

SIZES, SHARES = (1, 33, 70, 3, 90, 16, 0, 130), (1.0, 0.3, 0.2, 0.0, 0.01, 0.9, 0.0, 0.1)
"""Sizes and shares of entries: of blocks that are computed as dense ones, and of others."""


def sparse(matrix):
    row, col = matrix.nonzero().t()
    return Pattern(row, col, *matrix.shape), matrix[row, col]


def factor(rows, cols, share, dtype=torch.float64):
    """A random factor, with an entry of 0."""
    row, col = (torch.rand(rows, cols) < share).nonzero().t()
    value = torch.rand(row.numel(), dtype=dtype)
    value[:1] = 0
    return Pattern(row, col, rows, cols), value


def blocks(dtype=torch.float64):
    """A random factor of a batch of graphs."""
    return sparse(torch.block_diag(*(dense(*factor(n, n, share, dtype)) for n, share in zip(SIZES, SHARES))))


@each_dtype
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "share"),
    [(5, 4, 6, 0.5), (150, 40, 130, 0.2), (150, 300, 130, 0.003), (70, 3, 70, 0.0), (0, 0, 0, 0.0), (-1, 0, 0, 0.0)],
)
def test_equals_scipy_and_dense_products(rows, inner, columns, share, dtype):
    """Also of the blocks of a batch (−1 rows)."""
    sizes = (rows, inner), (columns, inner)
    left, right = (blocks(dtype) if rows < 0 else factor(*size, share, dtype) for size in sizes)
    pattern, entries, distance = compiled.product(*left, *right)
    wanted, values, mean = factors._scipy_product(*left, *right)
    for name in ("row", "col", "rowptr"):
        assert torch.equal(getattr(pattern, name), getattr(wanted, name))
    torch.testing.assert_close(entries, values)
    assert distance == pytest.approx(mean)
    torch.testing.assert_close(dense(pattern, entries), dense(*left) @ dense(*right).t())


def test_an_entry_between_blocks_is_not_lost():
    node = torch.tensor([0, 19])  # the first and the last of two complete graphs of 10 nodes
    one = torch.block_diag(torch.rand(10, 10), torch.rand(10, 10)).double()
    other = one.index_put((node, node.flip(0)), torch.ones(2, dtype=torch.float64))
    for left, right in ((one, other), (other, one)):
        pattern, entries, _ = compiled.product(*sparse(left), *sparse(right))
        torch.testing.assert_close(dense(pattern, entries), left @ right.t())


def test_threads_change_nothing():
    rows, batch = [*factor(300, 50, 0.1), *factor(300, 50, 0.1)], [*blocks(), *blocks()]

    def run():
        found = []
        for pattern, entries, distance in (compiled.product(*given) for given in (rows, batch)):
            found += [pattern.col, pattern.rowptr, entries, torch.tensor(distance)]
        return found

    assert_threads_change_nothing(run)


def test_distant_nodes_are_reordered(monkeypatch):
    monkeypatch.setattr(factors, "FAR_NODES", 8)
    node = torch.randperm(200)  # a path whose nodes are numbered at random
    row, col = torch.cat([node, node[:-1]]), torch.cat([node, node[1:]])
    order = (row * 200 + col).argsort()
    given = Pattern(row[order], col[order], 200, 200), torch.rand(399, dtype=torch.float64)
    pattern, entries = sparse_product(*given, *given)
    assert pattern.order is not None
    back = torch.empty_like(dense(pattern, entries))
    back[pattern.order[:, None], pattern.order] = dense(pattern, entries)
    torch.testing.assert_close(back, dense(*given) @ dense(*given).t())
