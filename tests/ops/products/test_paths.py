"""Products over paths, compiled and in plain torch, each against the dense mask; and the order of sweeps."""

import pytest
import torch

from pyg_topomask.operators.forest import tree_distances
from pyg_topomask.ops.blocks import one_graph_layout
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import paths
from pyg_topomask.ops.products.forest import build_forest, sibling_forest
from pyg_topomask.ops.products.paths import hop_product, path_product
from pyg_topomask.ops.products.trees import diameter, sweep_down, sweep_up
from tests.ops.products.conftest import parents

TOL = {"rtol": 1e-12, "atol": 1e-12}
compiled = pytest.mark.skipif(loader.missing("forest"), reason="needs a C++ compiler")
each_code = pytest.mark.usefixtures("_code")


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@each_code
@pytest.mark.parametrize("rate", [-1.0, 0.7])
def test_product_with_weights_on_the_path(forest, rate):
    parent, length, distance, _ = forest
    x, mask = rows(40, 1, 3), torch.exp(rate * distance).nan_to_num(posinf=0) * distance.isfinite()
    got = path_product(parent, x, torch.exp(rate * length)[:, None])
    torch.testing.assert_close(got[:, 0], mask @ x[:, 0], **TOL)


@each_code
@pytest.mark.parametrize("heads", [1, 2])
def test_product_with_a_function_of_the_hops(forest, heads):
    parent, _, _, hops = forest
    values = rows(heads, 5)
    x, inside = rows(40, 2, 3), hops < 5
    mask = torch.where(inside, values[:, torch.where(inside, hops, 0).long()], 0)
    wanted = torch.einsum("hij,jhc->ihc", mask.expand(2, -1, -1), x)
    torch.testing.assert_close(hop_product(parent, x, values), wanted, **TOL)


@each_code
def test_gradients():
    """With weights, and values, of each head and shared ones."""
    parent, x = torch.tensor([-1, 0, 1, 2, 2, 1, 5, 6, -1, 8]), rows(10, 2, 1).requires_grad_()
    for own in (1, 2):
        weight, values = torch.rand(10, own).double().requires_grad_(), rows(own, 3).requires_grad_()
        for product, given in ((path_product, weight), (hop_product, values)):
            for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
                assert check(lambda x, y, product=product: product(parent, x, y), (x, given))


@each_code
def test_growing_weights_keep_all_digits_on_a_path_of_1000_nodes():
    """Sweeps that subtract lose all of them: their error grows like e^{2 a depth}."""
    node, weight = torch.arange(1000), torch.full((1000, 1), 0.5, dtype=torch.float64).exp()
    mask = torch.exp(0.5 * (node[:, None] - node).abs().double())
    column = torch.zeros(1000, dtype=torch.float64).index_fill(0, torch.tensor([500]), 1)
    for x in (rows(1000).abs(), column):
        got = path_product(node - 1, x[:, None, None], weight)
        torch.testing.assert_close(got[:, 0, 0], mask @ x, rtol=1e-12, atol=0)


@compiled
@pytest.mark.parametrize("kind", ["forest", "path"])
def test_columns_of_a_task_change_no_number(kind, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # with more, tasks of 32 columns need more columns
    parent, x, values = parents(kind, 90), rows(90, 2, 40).requires_grad_(), rows(2, 6).requires_grad_()
    above, found = paths._preorder(parent)[1], []
    for columns in (8, 11, 16, 32):
        monkeypatch.setattr(paths, "_TASK_NUMEL", columns * paths._num_levels(above, 5))
        assert paths._block(x, values, above, True) == columns
        out = hop_product(parent, x, values)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, values])])
    for other in found[:-1]:
        torch.testing.assert_close(other, found[-1], **TOL)


@compiled
@pytest.mark.parametrize(("value", "message"), [(10**6, "contains node 1000000"), (4, "contains node 4"), (2, "cycle")])
def test_parents_that_changed_after_the_check_are_refused(value, message):
    parent = torch.tensor([-1, 0, 1, 2])
    x, weight = torch.ones(4, 1, 3), torch.ones(4, 1)
    path_product(parent, x, weight)
    parent[2] = value
    with pytest.raises(ValueError, match=message):
        path_product(parent, x, weight)


@each_code
def test_distances_of_all_pairs(forest):
    parent, length, distance, hops = forest
    same = distance.isfinite()
    for lengths, wanted in ((length, distance), (None, hops)):
        ((got, same_tree),) = tree_distances(parent, lengths, one_graph_layout(40, parent.device))
        assert torch.equal(same_tree[0], same)
        torch.testing.assert_close(got[0].double(), torch.where(same, wanted, 0).double(), **TOL)
    assert diameter(parent) == int(hops[same].max())


def test_sweeps_are_each_others_transpose(forest):
    order = build_forest(forest[0])
    x, y, weight = rows(40, 1, 4), rows(40, 1, 4), rows(40, 1)
    for shift in (0, 2, -1):
        up, down = sweep_up(order, x, weight, shift), sweep_down(order, y, weight, -shift)
        torch.testing.assert_close((up * y).sum(), (x * down).sum(), **TOL)


@pytest.mark.parametrize("kind", ["path", "star"])
def test_no_forest_takes_a_step_for_each_node(kind):
    for build in (build_forest, sibling_forest):  # the star's children are a path of siblings
        assert len(build(parents(kind, 10_000)).jumps) < 15


@pytest.mark.parametrize(
    ("parent", "error", "message"),
    [
        (torch.tensor([1, 2, 0]), ValueError, "cycle above node 0"),
        (torch.tensor([-1, 1]), ValueError, "cycle above node 1"),
        (torch.tensor([-1, 2]), ValueError, "contains node 2, but nodes are 0 to 1"),
        (torch.tensor([-2, 0]), ValueError, "contains node -2"),
        (torch.tensor([-1.0]), TypeError, "integers.*float32"),
        (torch.zeros(2, 2, dtype=torch.long), ValueError, r"shape \[N\].*\[2, 2\]"),
    ],
)
def test_what_is_no_forest_is_refused(parent, error, message):
    with pytest.raises(error, match=message):
        build_forest(parent)
