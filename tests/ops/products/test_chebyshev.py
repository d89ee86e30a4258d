import numpy as np
import pytest
import torch
from numpy.polynomial.chebyshev import chebval
from scipy.special import ive

from pyg_topomask.ops.products.chebyshev import heat_series


def series_of(low, high, tol, longest, time):
    return heat_series(low, high, tol, longest, torch.device("cpu")).coeffs(time)


def series(time, high, tol):
    return series_of(*np.array([[0.0], [high], [tol]]), time, torch.tensor([time], dtype=torch.float64))[:, 0, 0]


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(("time", "high"), [(0.1, 2.0), (1.0, 2.0), (50.0, 2.0), (50.0, 2000.0)])
def test_error_is_within_the_tolerance_and_the_degree_is_short(time, high, tol):
    coeffs, y = series(time, high, tol).numpy(), torch.linspace(-1, 1, 4001, dtype=torch.float64)
    error = chebval(y.numpy(), coeffs) - torch.exp(-time * high * (1 + y) / 2).numpy()
    assert abs(error).max() <= tol
    z, degree = time * high / 2, len(coeffs) - 1
    tail = 2 * ive(range(degree - 1, 4 * degree + 40), z).sum()
    assert tail > 0.9 * tol / 2  # two terms fewer would hardly do


def test_every_interval_has_its_own_degree_that_serves_all_times():
    time, y = torch.tensor([0.5, 5.0], dtype=torch.float64), np.linspace(-1, 1, 101)
    given = low, high, tol = np.array([[0.0, 0.0, -3.0], [0.0, 2.0, 3.0], [1e-6, 1e-4, 1e-6]])
    coeffs = series_of(*given, 5.0, time)
    for u in range(3):
        alone = series_of(*(x[u : u + 1] for x in given), 5.0, time)[:, 0]
        torch.testing.assert_close(coeffs[: len(alone), u], alone, rtol=1e-9, atol=1e-9)
        assert (coeffs[len(alone) :, u] == 0).all()
        for h in range(2):
            wanted = np.exp(-time[h].item() * (low[u] + (1 + y) * (high[u] - low[u]) / 2))
            assert abs(chebval(y, coeffs[:, u, h].numpy()) - wanted).max() <= tol[u] * wanted.max()
    assert (coeffs[1:, 0].abs() < 1e-15).all()  # an interval of one point


@pytest.mark.parametrize("time", [0.0, 0.3, 4.0])
def test_gradient_of_time(time):
    y = torch.linspace(-1, 1, 9, dtype=torch.float64)
    given, time = np.array([[0.0], [2.0], [1e-12]]), torch.tensor([time], dtype=torch.float64)
    coeffs = torch.autograd.functional.jacobian(lambda t: series_of(*given, float(time), t), time)[:, 0, 0, 0]
    wanted = -(1 + y) * torch.exp(-time * (1 + y))
    torch.testing.assert_close(torch.from_numpy(chebval(y.numpy(), coeffs.numpy())), wanted, rtol=1e-9, atol=1e-9)


def test_a_series_without_end_is_refused():
    with pytest.raises(ValueError, match=r"'time' 1e\+09 needs a polynomial of degree .* normalise the edge weights"):
        series(1e9, 2.0, 1e-6)
