import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops.products import centroid
from pyg_topomask.ops.products.centroid import centroid_plan, distance_product

TOL = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(autouse=True, params=[64, 2], ids=["matrices", "transforms"])
def _forms(request, monkeypatch):
    monkeypatch.setattr(centroid, "_MOST_DENSE", request.param)


@pytest.mark.parametrize(("num_values", "slice_numel"), [(1, 2**24), (5, 2**24), (60, 2**24), (9, 1)])
def test_any_function_of_the_distance(forest, num_values, slice_numel):
    parent, _, _, hops = forest
    values, x = torch.randn(2, num_values, dtype=torch.float64), torch.randn(40, 2, 3, dtype=torch.float64)
    inside = hops < num_values
    mask = torch.where(inside, values[:, torch.where(inside, hops, 0).long()], 0)
    with limits.override(slice_numbers=slice_numel):
        got = distance_product(centroid_plan(parent), values, x)
    torch.testing.assert_close(got, torch.einsum("hij,jhc->ihc", mask, x), **TOL)


@pytest.mark.parametrize("parent", [[-1, 0, 1, 1, 2, 3, 1, -1], [-1, 0, 1, 2, 3]], ids=["forest", "path"])
def test_gradients(parent):
    plan = centroid_plan(torch.tensor(parent))
    x, values = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((len(parent), 2, 1), (2, 4)))
    assert torch.autograd.gradcheck(lambda v, x: distance_product(plan, v, x), (values, x))
    assert torch.autograd.gradgradcheck(lambda v, x: distance_product(plan, v, x), (values, x))
