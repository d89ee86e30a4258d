import pytest
import torch

from pyg_topomask.ops.products.forest import build_forest, sibling_order
from pyg_topomask.ops.products.trees import (
    diameter,
    forest_product,
    hop_counts,
    meeting_depths,
    sweep_down,
    sweep_up,
)

TOL = {"rtol": 1e-12, "atol": 1e-12}


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("rate", [-1.0, 0.7])
@pytest.mark.usefixtures("_bands")
def test_product_with_weights_on_the_path(forest, rate):
    parent, length, distance, _ = forest
    x, mask = rows(40, 1, 3), torch.exp(rate * distance).nan_to_num(posinf=0) * distance.isfinite()
    got = forest_product(sibling_order(parent), x, torch.exp(rate * length)[:, None])
    torch.testing.assert_close(got[:, 0], mask @ x[:, 0], **TOL)


@pytest.mark.usefixtures("_bands")
def test_counts_by_hop(forest):
    parent, _, _, hops = forest
    x = rows(40, 2)
    counts = hop_counts(sibling_order(parent), x, 6)
    for hop in range(7):
        torch.testing.assert_close(counts[:, hop], (hops == hop).double() @ x, **TOL)


@pytest.mark.usefixtures("_bands")
def test_meeting_depths_give_all_distances(forest):
    parent, length, distance, hops = forest
    order = build_forest(parent)
    length = torch.where(parent < 0, 0, length)
    meeting = meeting_depths(order, torch.arange(40), 40, length)
    depth = sweep_down(order, length[order.order][:, None, None])[order.position, 0, 0]
    same = distance.isfinite()
    torch.testing.assert_close((depth[:, None] + depth - 2 * meeting)[same], distance[same], **TOL)
    assert (meeting[~same] == 0).all()
    assert diameter(order) == int(hops[same].max())


@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("shift", [0, 1])
def test_gradients(shift):
    order = sibling_order(torch.tensor([-1, 0, 1, 2, 2, 1, 5, 6, -1, 8]))
    x, weight = rows(10, 2, 3).requires_grad_(), torch.rand(10, 2, dtype=torch.float64, requires_grad=True)

    def run(x, weight):
        return forest_product(order, x, weight, shift)

    assert torch.autograd.gradcheck(run, (x, weight))
    assert torch.autograd.gradcheck(lambda x, w: run(x, w[:, :1]), (x, weight))  # heads share their weights
    assert torch.autograd.gradgradcheck(run, (x, weight))


def test_sweeps_are_each_others_transpose(forest):
    order = build_forest(forest[0])
    x, y, weight = rows(40, 1, 4), rows(40, 1, 4), rows(40, 1)
    for shift in (0, 2, -1):
        up, down = sweep_up(order, x, weight, shift), sweep_down(order, y, weight, -shift)
        torch.testing.assert_close((up * y).sum(), (x * down).sum(), **TOL)


@pytest.mark.parametrize("kind", ["path", "star"])
def test_no_forest_takes_a_step_for_each_node(kind):
    parent = torch.arange(10_000) - 1 if kind == "path" else torch.zeros(10_000, dtype=torch.long)
    parent[0] = -1
    for forest in sibling_order(parent)[:2]:  # the star's children are a path of siblings
        assert len(forest.starts) + len(forest.top_starts) < 210


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


def test_empty_forest():
    order = sibling_order(torch.zeros(0, dtype=torch.long))
    assert forest_product(order, rows(0, 1, 2), rows(0, 1)).shape == (0, 1, 2)
    assert diameter(order.tree) == 0
