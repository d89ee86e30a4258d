import pytest
import torch
from numpy.polynomial.chebyshev import chebval
from scipy.special import ive

from pyg_topomask.ops.products.chebyshev import heat_series


def series(time, high, tol):
    time, tol = torch.tensor([time], dtype=torch.float64), torch.tensor([[tol]], dtype=torch.float64)
    return heat_series(time, torch.zeros(1), torch.tensor([high]), tol)[:, 0, 0]


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(("time", "high"), [(0.1, 2.0), (1.0, 2.0), (50.0, 2.0), (50.0, 2000.0)])
def test_error_is_within_the_tolerance_and_the_degree_is_short(time, high, tol):
    coeffs, y = series(time, high, tol).numpy(), torch.linspace(-1, 1, 4001, dtype=torch.float64)
    error = chebval(y.numpy(), coeffs) - torch.exp(-time * high * (1 + y) / 2).numpy()
    assert abs(error).max() <= tol
    z, degree = time * high / 2, len(coeffs) - 1
    tail = 2 * ive(range(degree - 1, 4 * degree + 40), z).sum()
    assert tail > 0.9 * tol / 2  # two terms fewer would hardly do


def test_every_interval_and_time_has_its_own_degree():
    time = torch.tensor([0.5, 5.0], dtype=torch.float64)
    low, high = torch.tensor([0.0, 0.0, -3.0]), torch.tensor([0.0, 2.0, 3.0])
    tol = torch.full((3, 2), 1e-6, dtype=torch.float64)
    coeffs = heat_series(time, low, high, tol)
    for u in range(3):
        for h in range(2):
            alone = heat_series(time[h : h + 1], low[u : u + 1], high[u : u + 1], tol[:1, :1])[:, 0, 0]
            torch.testing.assert_close(coeffs[: alone.numel(), u, h], alone, rtol=0, atol=1e-9)
            assert (coeffs[alone.numel() :, u, h] == 0).all()
    assert (coeffs[1:, 0].abs() < 1e-15).all()  # an interval of one point


@pytest.mark.parametrize("time", [0.0, 0.3, 4.0])
def test_gradient_of_time(time):
    y = torch.linspace(-1, 1, 9, dtype=torch.float64)
    ends, tol = (torch.zeros(1), torch.tensor([2.0])), torch.tensor([[1e-12]])
    time = torch.tensor([time], dtype=torch.float64)
    coeffs = torch.autograd.functional.jacobian(lambda t: heat_series(t, *ends, tol), time)[:, 0, 0, 0]
    wanted = -(1 + y) * torch.exp(-time * (1 + y))
    torch.testing.assert_close(torch.from_numpy(chebval(y.numpy(), coeffs.numpy())), wanted, rtol=1e-9, atol=1e-9)


def test_a_series_without_end_is_refused():
    with pytest.raises(ValueError, match=r"'time' 1e\+09 needs a polynomial of degree .* normalise the edge weights"):
        series(1e9, 2.0, 1e-6)
