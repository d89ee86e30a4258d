"""Arithmetic that avoids overflow: weighted means whose denominators may vanish, scales, signs, precision."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(
    sums: Tensor,
    channels: int,
    tolerance: float | Tensor,
    floor: Tensor | None = None,
    origin: Tensor | None = None,
) -> Tensor:
    """Numerator over denominator, zero with zero gradient where the denominator vanishes.

    The denominator counts as vanishing if it is at most ``tolerance`` times its magnitude, at most ``floor``, or if the
    magnitude is close to underflow: the terms then lack significant digits, and the reciprocal may overflow.

    Args:
        sums: Numerators, the denominator and, unless it equals the denominator, the magnitude: the sum of the absolute
            values of the denominator's terms, or an upper bound on it. Shape ``[*, D + 1]`` or ``[*, D + 2]``.
        channels: ``D``.
        tolerance: Relative threshold, below 1; a tensor is broadcast to ``[*, 1]``.
        floor: Absolute threshold, shape ``[*, 1]``; none if :obj:`None`.
        origin: Offset that was subtracted from the values, broadcast to ``[*, D]``. It is added again where the
            denominator does not vanish. Zero if :obj:`None`.

    Returns:
        Shape ``[*, D]``.
    """
    magnitude = sums[..., -1:].detach()
    underflown = magnitude < 2**14 * torch.finfo(sums.dtype).tiny
    scale = power_of_two(magnitude)  # a mask may be scaled by any factor
    numerator, denominator = sums[..., :channels] * scale, sums[..., channels : channels + 1] * scale
    size = denominator.detach().abs()
    vanished = underflown | (size <= tolerance * magnitude * scale)
    if floor is not None:
        vanished = vanished | (size <= floor.detach() * scale)
    mean = torch.where(vanished, 0, numerator) / torch.where(vanished, 1, denominator)
    return mean if origin is None else mean + torch.where(vanished, 0, origin)


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Widen half precision, in which sums over a graph lose all digits."""
    return tuple(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors)


def power_of_two(x: Tensor) -> Tensor:
    """The power of two that brings a number ``x ≥ 0`` into [1/2, 1); 1 for 0."""
    most = 1000 if x.dtype == torch.float64 else 100  # keeps the power itself within the range
    return torch.ldexp(torch.ones_like(x), -torch.frexp(x).exponent.clamp(-most, most))


def size_of_rows(x: Tensor) -> Tensor:
    """Sum of absolute values over the last dimension, ``[*, 1]``; on CPU 4 times as fast as their maximum."""
    return x.abs().sum(-1, keepdim=True)


def absolute(x: Tensor) -> Tensor:
    """``|x|`` with derivative +1 at 0, so that the gradient is continuous where a parameter starts at 0."""
    return torch.where(x < 0, -x, x)


def coarsest_eps(*tensors: Tensor) -> float:
    """Largest machine epsilon of the tensors' dtypes."""
    return max(torch.finfo(x.dtype).eps for x in tensors)


def non_negative(x: Tensor) -> bool:
    """Whether no number is negative. Always false on CUDA, where the check would wait for the device."""
    return not x.is_cuda and (x.numel() == 0 or bool(x.detach().min() >= 0))
