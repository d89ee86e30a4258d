r"""Chebyshev series of :math:`e^{-\lambda x}` on an interval, as short as an error tolerance allows."""

from math import log, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_setting, outside

# Series of a higher degree are refused: the user hardly intends that many sparse products.
_MOST_DEGREE = 2**15

# Degree up to which the cosine transform is a product with its matrix.
_MOST_PRODUCTS = 256


class HeatSeries(NamedTuple):
    """What gives the coefficients for a time."""

    points: Tensor
    """Negative Chebyshev nodes of each interval, shape ``[U, n + 1]``, float64."""
    kept: Tensor | None
    """Which coefficients the series of each interval has, bool, shape ``[U, K + 1]``; all if :obj:`None`."""
    matrix: Tensor
    """The cosine transform, ``[n + 1, K + 1]``; ``[0, K + 1]`` if it would be large, and is an FFT."""

    def coeffs(self, time: Tensor) -> Tensor:
        """Coefficients for times :math:`\\lambda \\ge 0` ``[H]``: shape ``[K + 1, U, H]``, float64, zero beyond the
        degree of each series.
        """
        sample = torch.exp(time.double()[:, None] * self.points[:, None])
        coeffs = sample @ self.matrix if len(self.matrix) else _by_fft(sample)[..., : self.matrix.size(1)]
        return (coeffs if self.kept is None else coeffs * self.kept[:, None]).movedim(-1, 0)


def heat_series(low: np.ndarray, high: np.ndarray, tol: np.ndarray, longest: float, device: torch.device) -> HeatSeries:
    r"""Series :math:`e^{-\lambda x} \approx \sum_k c_k T_k(y)` on [low, high], where ``y`` runs from −1 to 1.

    With :math:`z = \lambda (\mathrm{high} - \mathrm{low}) / 2` the exact coefficients are
    :math:`2 (-1)^k e^{-\lambda\,\mathrm{low} - z} I_k(z)`. They are computed by a cosine transform of the function at
    Chebyshev nodes, so that gradients reach the time. Every series ends at the first degree whose tail at the longest
    time is at most half of its tolerance; the other half is left for errors of the transform and of rounding. Shorter
    times have smaller tails. Degrees are found on the host, which knows all but the time, so that CUDA does not wait.

    Args:
        low, high: Ends of the intervals, shape ``[U]``.
        tol: Largest error of each series, relative to its largest value :math:`e^{-\lambda\,\mathrm{low}}`; shape
            ``[U]``.
        longest: The longest time, or an upper bound.
        device: Device of the time.

    Raises:
        ValueError: If a series needs too many terms.
    """
    half = (high - low) / 2
    bound = _degree_bound(longest * half.max(initial=0), tol.min(initial=1) / 8)
    if not bound <= _MOST_DEGREE:
        raise ValueError(
            f"'time' {longest:.3g} needs a polynomial of degree {bound:.0f}, more than {_MOST_DEGREE}; use a smaller "
            "time, or normalise the edge weights"
        )
    points, degree = outside(_degrees, half, tol, longest, int(bound))
    count = min(degree.max(initial=0), int(bound)) + 1
    nodes = torch.from_numpy(-low[:, None] - points).to(device, non_blocking=True)
    kept = None
    if len(degree) > 1:
        kept = torch.from_numpy(np.arange(count) <= degree[:, None]).to(device, non_blocking=True)
    matrix = _transform(points.shape[1] - 1, device)[1]
    return HeatSeries(nodes, kept, nodes.new_empty(0, count) if matrix is None else matrix[:, :count].clone())


def _degrees(half: np.ndarray, tol: np.ndarray, longest: float, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances of the Chebyshev nodes from the lower end of each interval, ``[U, n + 1]``, and degrees, ``[U]``."""
    points = half[:, None] * _transform(num_nodes, torch.device("cpu"))[0].numpy()
    sample, matrix = torch.from_numpy(np.exp(-longest * points)), _transform(num_nodes, torch.device("cpu"))[1]
    size = (_by_fft(sample) if matrix is None else sample @ matrix).abs().numpy()
    tail = size[:, ::-1].cumsum(1)[:, ::-1] - size  # sum of the terms after each one
    # One term more than the tolerance needs, because the gradient at time 0 is that of the first term.
    return points, (tail > tol[:, None] / 2).sum(1) + 1


def _by_fft(sample: Tensor) -> Tensor:
    """The coefficients of the series with the values ``sample [*, n + 1]`` at the Chebyshev nodes."""
    coeffs = torch.fft.rfft(torch.cat([sample, sample[..., 1:-1].flip(-1)], dim=-1)).real / (sample.size(-1) - 1)
    return torch.cat([coeffs[..., :1] / 2, coeffs[..., 1:-1], coeffs[..., -1:] / 2], dim=-1)


@once_per_setting(64)
def _transform(num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The Chebyshev nodes, from 2 to 0, ``[n + 1]``, and the cosine transform that gives the coefficients, ``[n + 1,
    n + 1]``: one product takes fewer calls than an FFT. There is no matrix if it would be large.
    """
    number = torch.arange(num_nodes + 1, dtype=torch.float64, device=device)
    points = 1 + torch.cos(number * (pi / num_nodes))
    if num_nodes > _MOST_PRODUCTS:
        return points, None
    ends = torch.where((number == 0) | (number == num_nodes), 0.5, 1.0)
    return points, torch.cos(number[:, None] * number * (pi / num_nodes)) * ends[:, None] * ends * (2 / num_nodes)


def _degree_bound(width: float, tol: float) -> float:
    r"""Degree beyond which the tail is at most ``tol``.

    :math:`e^{-z} I_k(z)` is the probability that the difference of two Poisson variables of mean ``z / 2`` is ``k``.
    The degree follows from Bernstein's inequality for this difference.
    """
    digits = log(2 / tol)
    return digits / 3 + sqrt(digits**2 / 9 + 2 * digits * width) + 2
