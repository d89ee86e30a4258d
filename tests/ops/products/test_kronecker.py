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


def test_one_time_serves_all_heads():
    x = torch.randn(3, 1, 8, 2, dtype=torch.float64)
    each = [grid_heat(TIME[1:2], x[h : h + 1], (2, 4)) for h in range(3)]
    torch.testing.assert_close(grid_heat(TIME[1:2], x, (2, 4)), torch.cat(each), **TOL)
