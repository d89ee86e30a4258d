"""Products over paths, compiled and in plain torch: each against the dense mask, and both against each other."""

import pytest
import torch

from pyg_topomask.ops.products import paths
from pyg_topomask.ops.products.forest import sibling_order
from pyg_topomask.ops.products.paths import hop_counts, path_product
from pyg_topomask.ops.products.trees import forest_product

TOL = {"rtol": 1e-12, "atol": 1e-12}
compiled = pytest.mark.skipif(isinstance(paths.load(), str), reason="needs a C++ compiler")


@pytest.fixture(params=[pytest.param("1", marks=compiled), "0"], ids=["compiled", "torch"])
def _code(request, monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", request.param)


def rows(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def random_forest(num_nodes):
    parent = torch.where(torch.rand(num_nodes) < 0.05, -1, (torch.rand(num_nodes) * torch.arange(num_nodes)).long())
    return parent.index_fill(0, torch.tensor([0]), -1)


@pytest.mark.parametrize("rate", [-1.0, 0.7])
@pytest.mark.usefixtures("_code")
def test_product_with_weights_on_the_path(forest, rate):
    parent, length, distance, _ = forest
    x, mask = rows(40, 1, 3), torch.exp(rate * distance).nan_to_num(posinf=0) * distance.isfinite()
    got = path_product(parent, x, torch.exp(rate * length)[:, None])
    torch.testing.assert_close(got[:, 0], mask @ x[:, 0], **TOL)


@pytest.mark.usefixtures("_code", "_bands")
def test_counts_by_hop(forest):
    parent, _, _, hops = forest
    x = rows(40, 2)
    counts = hop_counts(parent, x, 6)
    for hop in range(7):
        torch.testing.assert_close(counts[:, hop], (hops == hop).double() @ x, **TOL)


@pytest.mark.usefixtures("_code")
def test_growing_weights_keep_all_digits_on_a_path_of_1000_nodes():
    """Sweeps that subtract lose all of them: their error grows like e^{2 a depth}."""
    parent = torch.arange(1000) - 1
    weight = torch.full((1000, 1), 0.5, dtype=torch.float64).exp()
    node = torch.arange(1000)
    mask = torch.exp(0.5 * (node[:, None] - node).abs().double())
    x = rows(1000, 1, 1).abs()
    got = path_product(parent, x, weight)
    torch.testing.assert_close(got[:, 0], mask @ x[:, 0], rtol=1e-12, atol=0)
    single = torch.zeros(1000, 1, 1, dtype=torch.float64)
    single[500] = 1  # one column of the mask
    got = path_product(parent, single, weight)
    torch.testing.assert_close(got[:, 0, 0], mask[:, 500], rtol=1e-12, atol=0)


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("heads", "channels", "weights", "shift"),
    [(1, 3, 1, 0), (2, 40, 2, 0), (2, 33, 1, 0), (3, 64, None, 0), (2, 6, 2, 2), (1, 6, None, -1), (1, 3, 1, 5)],
)
def test_compiled_code_equals_plain_torch(heads, channels, weights, shift, dtype):
    """Blocks of every width, per-head and shared weights, and rows that edges shift, or shift out."""
    parent, x = random_forest(120), rows(120, heads, channels, dtype=dtype).requires_grad_()
    weight = None if weights is None else torch.rand(120, weights, dtype=dtype, requires_grad=True)
    inputs, grad = [x] if weight is None else [x, weight], rows(120, heads, channels, dtype=dtype)
    found, wanted = path_product(parent, x, weight, shift), forest_product(sibling_order(parent), x, weight, shift)
    tol = TOL if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found, wanted, **tol)
    both = [torch.autograd.grad(out, inputs, grad) for out in (found, wanted)]
    torch.testing.assert_close(*both, **tol)


@compiled
@pytest.mark.parametrize("shift", [0, 1])
def test_first_and_second_derivatives(shift):
    parent = torch.tensor([-1, 0, 1, 2, 2, 1, 5, 6, -1, 8])
    x, weight = rows(10, 2, 3).requires_grad_(), torch.rand(10, 2, dtype=torch.float64, requires_grad=True)

    def run(x, weight):
        return path_product(parent, x, weight, shift)

    assert torch.autograd.gradcheck(run, (x, weight))
    assert torch.autograd.gradcheck(lambda x, w: run(x, w[:, :1]), (x, weight))  # heads share their weights
    assert torch.autograd.gradgradcheck(run, (x, weight), fast_mode=True)


@compiled
def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(paths, "_WORK_PER_THREAD", 1)
    parent, threads = random_forest(300), torch.get_num_threads()
    x, weight = rows(300, 2, 100).float().requires_grad_(), torch.rand(300, 1, requires_grad=True)
    found = []
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            out = path_product(parent, x, weight)
            found.append([out, *torch.autograd.grad(out.square().sum(), [x, weight])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


@compiled
def test_operator_checks_of_torch():
    parent, x = random_forest(12), rows(12, 2, 3).requires_grad_()
    weight = torch.rand(12, 1, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(paths._product, (x, weight, parent, *paths._preorder(parent), 0))


@compiled
def test_trees_do_not_mix():
    parent, x, weight = random_forest(60), rows(120, 1, 4), torch.rand(60, 1, dtype=torch.float64)
    both = torch.cat([parent, torch.where(parent < 0, -1, parent + 60)])
    spoilt = torch.cat([x[:60], torch.full_like(x[60:], torch.inf)])
    first, second = (path_product(both, some, torch.cat([weight, weight])) for some in (x, spoilt))
    assert torch.equal(first[:60], second[:60])


@pytest.mark.usefixtures("_code")
def test_no_nodes_and_no_columns():
    empty = torch.zeros(0, dtype=torch.long)
    assert path_product(empty, rows(0, 1, 2), rows(0, 1)).shape == (0, 1, 2)
    assert path_product(torch.tensor([-1, 0]), rows(2, 1, 0), rows(2, 1)).shape == (2, 1, 0)
