"""Signs, precision, columns of ones, and vanishing denominators."""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from pyg_topomask import plan as plans


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Widen half precision, in which sums over a graph lose all digits."""
    return tuple(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors)


MOST_LOG = 40.0
"""Logarithm of the largest number that a mask learns as an exponential: products and sums of two stay in float32."""


def bounded_exp(x: Tensor) -> Tensor:
    """``exp(x)``, and :math:`e^{40}` without a gradient where ``x`` is above 40, so that attention stays finite."""
    return x.clamp(max=MOST_LOG).exp()


def with_ones(v: Tensor) -> Tensor:
    """Append a column of ones to values ``[*, D]``. Its weighted sum is the sum of the weights."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)


def least_denominator(dtype: torch.dtype) -> float:
    """Denominators of attention below this number count as zero: their quotients would have lost all digits."""
    return float(2**14 * torch.finfo(dtype).tiny)


def absolute(x: Tensor) -> Tensor:
    """``|x|`` with derivative +1 at 0, so that the gradient is continuous where a parameter starts at 0."""
    return leaky_relu(-x, -1.0)


def coarsest_eps(*tensors: Tensor) -> float:
    """Largest machine epsilon of the tensors' dtypes; 0 if there is none."""
    return max((torch.finfo(x.dtype).eps for x in tensors), default=0.0)


def product_eps(dtype: torch.dtype) -> float:
    """Machine epsilon of products with a mask of this dtype, for which half precision is widened."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def non_negative(x: Tensor) -> bool:
    """Whether no number is negative. Always false on CUDA, where the check would wait for the device, and in a plan for
    numbers that are learned.
    """
    if not plans.planned():
        return not x.is_cuda and (x.numel() == 0 or bool(x.detach().min() >= 0))
    return plans.once("numbers.non_negative", lambda: not x.requires_grad and bool((x >= 0).all()))
