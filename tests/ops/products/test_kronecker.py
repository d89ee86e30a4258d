import pytest
import torch

from pyg_topomask.ops.products import kronecker
from pyg_topomask.ops.products.kronecker import grid_heat, hypercube_heat

TOL = {"rtol": 1e-12, "atol": 1e-12}
TIME = torch.tensor([0.0, 0.7, 20.0], dtype=torch.float64)


def laplacian(shape):
    """Of a grid, entry by entry: neighbours differ by one in one place."""
    places = torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape))
    adj = ((places[:, None] - places).abs().sum(-1) == 1).double()
    return torch.diag(adj.sum(1)) - adj


@pytest.mark.parametrize("most_dense", [256, 1], ids=["matrices", "transforms"])
@pytest.mark.parametrize("shape", [(1,), (6,), (4, 5), (2, 3, 4)])
def test_grid_is_the_matrix_exponential(shape, most_dense, monkeypatch):
    monkeypatch.setattr(kronecker, "_MOST_DENSE", most_dense)
    mask = torch.linalg.matrix_exp(-TIME[:, None, None] * laplacian(shape))
    x = torch.randn(3, 2, mask.size(1), 40, dtype=torch.float64)
    torch.testing.assert_close(grid_heat(TIME, x, shape), mask[:, None] @ x, **TOL)


@pytest.mark.parametrize("num_nodes", [150, 129, 300])
@pytest.mark.parametrize("time", [[0.0], [0.3, 2.0]])
def test_heat_that_stays_near_is_the_matrix_exponential(time, num_nodes):
    """Paths so long that each row is computed from its neighbourhood, and the ends reflect heat."""
    time = torch.tensor(time, dtype=torch.float64)
    assert kronecker._ROWS + 2 * kronecker._reach(float(time.max()), 1e-16) <= 96
    x = torch.randn(time.numel(), 2, num_nodes, 3, dtype=torch.float64)
    mask = torch.linalg.matrix_exp(-time[:, None, None] * laplacian((num_nodes,)))
    torch.testing.assert_close(grid_heat(time, x, (num_nodes,)), mask[:, None] @ x, rtol=1e-14, atol=1e-14)
    found = grid_heat(time, x.float(), (num_nodes,))
    torch.testing.assert_close(found.double(), mask[:, None] @ x, rtol=1e-5, atol=1e-6)


def test_derivatives_of_heat_that_stays_near(monkeypatch):
    monkeypatch.setattr(kronecker, "_ROWS", 2)
    monkeypatch.setattr(kronecker, "_reach", lambda time, eps: 8)
    x = torch.randn(2, 1, 25, 2, dtype=torch.float64, requires_grad=True)
    for time in (torch.tensor([0.01, 0.03]), torch.tensor([0.02])):
        inputs = time.double().requires_grad_(), x
        assert torch.autograd.gradcheck(lambda t, x: grid_heat(t, x, (25,)), inputs)
        assert torch.autograd.gradgradcheck(lambda t, x: grid_heat(t, x, (25,)), inputs, fast_mode=True)


@pytest.mark.parametrize("axes", [5, 2])
@pytest.mark.parametrize("dim", [0, 1, 5])
def test_hypercube_is_the_matrix_exponential(dim, axes, monkeypatch):
    monkeypatch.setattr(kronecker, "_CUBE_AXES", axes)
    lap = laplacian((2,) * dim) if dim else torch.zeros(1, 1, dtype=torch.float64)
    mask = torch.linalg.matrix_exp(-TIME[:, None, None] * lap)
    x = torch.randn(3, 2, 2**dim, 4, dtype=torch.float64)
    torch.testing.assert_close(hypercube_heat(TIME, x, dim), mask[:, None] @ x, **TOL)


@pytest.mark.parametrize("most_dense", [256, 1], ids=["matrices", "transforms"])
def test_gradients(most_dense, monkeypatch):
    monkeypatch.setattr(kronecker, "_MOST_DENSE", most_dense)
    time, x = TIME[1:].clone().requires_grad_(), torch.randn(2, 1, 8, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t, x: grid_heat(t, x, (2, 4)), (time, x))
    assert torch.autograd.gradcheck(lambda t, x: hypercube_heat(t, x, 3), (time, x))


def test_heat_that_stays_near_under_function_transforms():
    x, time = torch.rand(2, 1, 1, 100, 3, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    found = torch.func.vmap(lambda y: grid_heat(time, y, (100,)))(x)
    torch.testing.assert_close(found, torch.stack([grid_heat(time, y, (100,)) for y in x]), **TOL)
    slope = torch.func.grad(lambda y: grid_heat(time, y, (100,)).square().sum())(x[0])
    torch.testing.assert_close(slope, 2 * grid_heat(2 * time, x[0], (100,)), **TOL)


def test_one_time_serves_all_heads():
    x = torch.randn(3, 1, 8, 2, dtype=torch.float64)
    each = [grid_heat(TIME[1:2], x[h : h + 1], (2, 4)) for h in range(3)]
    torch.testing.assert_close(grid_heat(TIME[1:2], x, (2, 4)), torch.cat(each), **TOL)
