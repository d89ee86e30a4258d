"""Weighted means from sums: division by denominators that may vanish, at any scale."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.sparse import Pattern, spmm


def divide(sums: Tensor, magnitude: Tensor) -> Tensor:
    """Numerator over denominator (the last column), zero where it vanishes beside the ``magnitude`` of its terms.

    Or where all terms are next to underflow: few digits are left of them, and one over them may be infinite.

    Args:
        sums: Numerators and denominator, shape ``[*, D + 1]``.
        magnitude: Sum of the absolute values of the denominator's terms, shape ``[*]``.

    Returns:
        Shape ``[*, D]``.
    """
    magnitude = magnitude.detach()[..., None]
    underflown = magnitude < 2**14 * torch.finfo(magnitude.dtype).tiny
    scale = power_of_two(magnitude)  # a mask may be scaled, too
    sums, magnitude = sums * scale, magnitude * scale
    num, den = sums[..., :-1], sums[..., -1:]
    vanished = underflown | (den.detach().abs() <= torch.finfo(den.dtype).eps * magnitude)
    return torch.where(vanished, 0, num) / torch.where(vanished, 1, den)


def divide_sums(sums: Tensor) -> Tensor:
    """Numerators ``[N, H, D]`` over the denominators and their terms' magnitudes, the last two of ``[N, H, D + 2]``.

    For all graphs at once: within each group of equal graphs it would be most of the calls.
    """
    return divide(sums[..., :-1], sums[..., -1])


def with_magnitude(sums: Tensor, weight: Tensor | None) -> Tensor:
    """Sums ``[g, H, D + 1, n]`` and those of ``|weight|`` as ``[g, H, n, D + 2]``; no weights: none is negative."""
    with torch.no_grad():
        magnitude = sums[..., -1:, :] if weight is None else weight.abs().sum(-2, keepdim=True)
    return torch.cat([sums, magnitude], dim=-2).mT


def row_magnitude(pattern: Pattern, weight: Tensor, sums: Tensor) -> Tensor:
    """Row sums of ``|weight|``: the denominators themselves unless a weight is negative."""
    with torch.no_grad():
        if non_negative(weight):
            return sums[:, -1]
        return spmm(pattern, weight.abs(), weight.new_ones(pattern.num_cols, 1)).squeeze(1)


def power_of_two(x: Tensor) -> Tensor:
    """The power of two that brings a number ``x ≥ 0`` into [1/2, 1); 1 for 0."""
    most = 1000 if x.dtype == torch.float64 else 100  # so that the power itself stays within the range
    return torch.ldexp(torch.ones_like(x), -torch.frexp(x).exponent.clamp(-most, most))


def absolute(x: Tensor) -> Tensor:
    """``|x|`` with derivative +1 at 0, so that nothing jumps where a parameter starts at 0."""
    return torch.where(x < 0, -x, x)


def coarsest_eps(*tensors: Tensor) -> float:
    """Largest machine epsilon of the tensors' dtypes."""
    return max(torch.finfo(x.dtype).eps for x in tensors)


def non_negative(x: Tensor) -> bool:
    """Whether no number is negative; not asked on CUDA, where the answer would have to be waited for."""
    return not x.is_cuda and (x.numel() == 0 or bool(x.detach().min() >= 0))
