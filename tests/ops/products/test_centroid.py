import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops.products import centroid
from pyg_topomask.ops.products.centroid import centroid_plan, distance_product

TOL = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(autouse=True, params=[64, 2], ids=["matrices", "transforms"])
def _forms(request, monkeypatch):
    monkeypatch.setattr(centroid, "_MOST_DENSE", request.param)


@pytest.mark.parametrize("num_values", [1, 5, 60])
def test_any_function_of_the_distance(forest, num_values):
    parent, _, _, hops = forest
    values, x = torch.randn(2, num_values, dtype=torch.float64), torch.randn(40, 2, 3, dtype=torch.float64)
    inside = hops < num_values
    mask = torch.where(inside, values[:, torch.where(inside, hops, 0).long()], 0)
    got = distance_product(centroid_plan(parent), values, x)
    torch.testing.assert_close(got, torch.einsum("hij,jhc->ihc", mask, x), **TOL)


def test_gradients():
    plan = centroid_plan(torch.tensor([-1, 0, 1, 1, 2, 3, 1, -1]))
    x, values = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((8, 2, 1), (2, 4)))
    assert torch.autograd.gradcheck(lambda v, x: distance_product(plan, v, x), (values, x))
    assert torch.autograd.gradgradcheck(lambda v, x: distance_product(plan, v, x), (values, x))


def test_second_derivatives_on_a_path():
    plan = centroid_plan(torch.arange(5) - 1)
    x, values = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 1, 2), (1, 3)))
    assert torch.autograd.gradgradcheck(lambda v, x: distance_product(plan, v, x), (values, x))


def test_a_path_is_one_toeplitz_matrix():
    (terms,) = centroid_plan(torch.arange(100) - 1)
    assert terms.is_path
    assert terms.size == 128
    assert terms.pattern.nnz == 100


def test_slices_of_columns_are_the_product(forest):
    parent = forest[0]
    values, x = torch.randn(1, 9, dtype=torch.float64), torch.randn(40, 1, 5, dtype=torch.float64)
    whole = distance_product(centroid_plan(parent), values, x)
    with limits.override(slice_numbers=1):
        sliced = distance_product(centroid_plan(parent), values, x)
    torch.testing.assert_close(sliced, whole, **TOL)


def test_empty_forest():
    x = torch.ones(0, 1, 2)
    assert distance_product(centroid_plan(torch.zeros(0, dtype=torch.long)), torch.ones(1, 3), x).shape == (0, 1, 2)
