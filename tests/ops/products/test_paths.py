"""Products over paths, compiled and in plain torch: each against the dense mask, and both against each other."""

import pytest
import torch

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import paths
from pyg_topomask.ops.products.paths import hop_product, path_product

TOL = {"rtol": 1e-12, "atol": 1e-12}
compiled = pytest.mark.skipif(loader.missing("forest"), reason="needs a C++ compiler")


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


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.usefixtures("_code")
def test_product_with_a_function_of_the_hops(forest, heads):
    parent, _, _, hops = forest
    values = rows(heads, 5)
    x, inside = rows(40, 2, 3), hops < 5
    mask = torch.where(inside, values[:, torch.where(inside, hops, 0).long()], 0)
    wanted = torch.einsum("hij,jhc->ihc", mask.expand(2, -1, -1), x)
    torch.testing.assert_close(hop_product(parent, x, values), wanted, **TOL)


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
@pytest.mark.parametrize("num_hops", [None, 1, 6])
@pytest.mark.parametrize(("heads", "channels", "own"), [(1, 3, 1), (2, 40, 2), (2, 33, 1), (3, 64, 3)])
def test_compiled_code_equals_plain_torch(heads, channels, own, num_hops, dtype):
    """Weights of edges, or values by hop: for each head and shared, in blocks of every width."""
    parent, x = random_forest(120), rows(120, heads, channels, dtype=dtype).requires_grad_()
    weight = torch.rand(120, own, dtype=dtype) if num_hops is None else rows(own, num_hops + 1, dtype=dtype)
    inputs, grad = [x, weight.requires_grad_()], rows(120, heads, channels, dtype=dtype)
    both = [product(x, weight, parent, num_hops is not None) for product in (paths._product, paths._plain)]
    tol = TOL if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(*both, **tol)
    torch.testing.assert_close(*[torch.autograd.grad(out, inputs, grad, retain_graph=True) for out in both], **tol)
    torch.testing.assert_close(*[torch.autograd.grad(out, inputs[:1], grad) for out in both], **tol)


@compiled
@pytest.mark.parametrize("parent", [random_forest(90), torch.arange(90) - 1], ids=["forest", "path"])
def test_columns_of_a_task_change_no_number(parent, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # with more, tasks of 32 columns need more columns
    x, values, grad = rows(90, 2, 40).requires_grad_(), rows(2, 6).requires_grad_(), rows(90, 2, 40)
    above, found = paths._preorder(parent)[1], []
    for columns in (8, 11, 16, 32):
        monkeypatch.setattr(paths, "_TASK_NUMEL", columns * paths._num_levels(above, 5))
        assert paths._block(x, values, above, True) == columns
        out = paths._product(x, values, parent, True)
        found.append([out, *torch.autograd.grad(out, [x, values], grad)])
    for other in found[:-1]:
        torch.testing.assert_close(other, found[-1], **TOL)


@compiled
def test_trees_do_not_mix():
    parent, x, weight = random_forest(60), rows(120, 1, 4), torch.rand(60, 1, dtype=torch.float64)
    both = torch.cat([parent, torch.where(parent < 0, -1, parent + 60)])
    spoilt = torch.cat([x[:60], torch.full_like(x[60:], torch.inf)])
    first, second = (path_product(both, some, torch.cat([weight, weight])) for some in (x, spoilt))
    assert torch.equal(first[:60], second[:60])
    values = rows(1, 4)
    assert torch.equal(hop_product(both, x, values)[:60], hop_product(both, spoilt, values)[:60])


@pytest.mark.usefixtures("_code")
def test_no_nodes_and_no_columns():
    empty = torch.zeros(0, dtype=torch.long)
    assert path_product(empty, rows(0, 1, 2), rows(0, 1)).shape == (0, 1, 2)
    assert hop_product(empty, rows(0, 1, 2), rows(1, 3)).shape == (0, 1, 2)
    assert path_product(torch.tensor([-1, 0]), rows(2, 1, 0), rows(2, 1)).shape == (2, 1, 0)


@compiled
@pytest.mark.parametrize(("value", "message"), [(10**6, "contains node 1000000"), (4, "contains node 4"), (2, "cycle")])
def test_parents_that_changed_after_the_check_are_refused(value, message):
    parent = torch.tensor([-1, 0, 1, 2])
    x, weight = torch.ones(4, 1, 3), torch.ones(4, 1)
    path_product(parent, x, weight)
    parent[2] = value
    with pytest.raises(ValueError, match=message):
        path_product(parent, x, weight)
