r"""Chebyshev series of :math:`e^{-\lambda x}` on an interval, as short as an error tolerance allows."""

from __future__ import annotations

from functools import lru_cache
from math import log, pi, sqrt

import torch
from torch import Tensor

# Series of a higher degree are refused: the user hardly intends that many sparse products.
_MOST_DEGREE = 2**15

# Degree up to which the cosine transform is a product with its matrix.
_MOST_PRODUCTS = 256


def heat_series(time: Tensor, low: Tensor, high: Tensor, tol: Tensor) -> Tensor:
    r"""Coefficients of :math:`e^{-\lambda x} \approx e^{-\lambda\,\mathrm{low}} \sum_k c_k T_k(y)` on [low, high].

    ``y`` runs from −1 to 1. With :math:`z = \lambda (\mathrm{high} - \mathrm{low}) / 2` the exact coefficients are
    :math:`2 (-1)^k e^{-z} I_k(z)`. They are computed by a cosine transform of the function at Chebyshev nodes, so that
    gradients reach the time. Every series ends at the first degree whose tail is at most half of its tolerance; the
    other half is left for errors of the transform and of rounding.

    Args:
        time: :math:`\lambda \ge 0`, shape ``[H]``.
        low, high: Ends of the intervals, shape ``[U]``.
        tol: Largest error of each series, relative to its largest value :math:`e^{-\lambda\,\mathrm{low}}`; shape
            ``[U, H]``.

    Returns:
        Shape ``[K + 1, U, H]``, float64, zero beyond the degree of each series.

    Raises:
        ValueError: If a series needs too many terms.
    """
    time = time.double()
    width = (high - low).double()[:, None] * time / 2  # z, [U, H]
    if width.numel() == 0:
        return width[None]
    bound = _degree_bound(float(width.detach().max()), float(tol.min()) / 8)
    if not bound <= _MOST_DEGREE:
        raise ValueError(
            f"'time' {float(time.detach().max()):.3g} needs a polynomial of degree {bound:.0f}, more than "
            f"{_MOST_DEGREE}; use a smaller time, or normalise the edge weights"
        )
    num_nodes = int(bound)
    points, matrix = _transform(num_nodes, time.device)
    sample = torch.exp(-width[..., None] * points)  # [U, H, n + 1]
    if matrix is not None:
        coeffs = sample @ matrix
    else:
        mirrored = torch.cat([sample, sample[..., 1:-1].flip(-1)], dim=-1)
        coeffs = torch.fft.rfft(mirrored).real / num_nodes
        coeffs = torch.cat([coeffs[..., :1] / 2, coeffs[..., 1:-1], coeffs[..., -1:] / 2], dim=-1)
    size = coeffs.detach().abs()
    tail = size.flip(-1).cumsum(-1).flip(-1) - size  # sum of the terms after each one
    # One term more than the tolerance needs, because the gradient at time 0 is that of the first term.
    degree = (tail > tol[..., None] / 2).sum(-1) + 1
    keep = torch.arange(num_nodes + 1, device=time.device) <= degree[..., None]
    return torch.where(keep, coeffs, 0)[..., : int(degree.max()) + 1].movedim(-1, 0)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
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
