"""Mask parameters that may differ by head."""

from functools import reduce
from numbers import Real

import torch
from torch import Tensor

from pyg_topomask.checks import check_floating, readable


def per_head(name: str, value: float | Tensor, device: torch.device | None = None) -> tuple[Tensor, int | None]:
    """A parameter as a tensor ``[H]`` or ``[1]``, with its ``H``, or :obj:`None` if all heads share it.

    Args:
        name: Name of the parameter, for messages.
        value: A number, which becomes float64, or a floating-point tensor without dimensions or of shape ``[H]``.
        device: Device of the tensor of a number; torch's default device if :obj:`None`.

    Raises:
        TypeError: If the value is neither.
        ValueError: If the tensor has another shape.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return torch.full((1,), float(value), dtype=torch.float64, device=device), None
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(
            f"'{name}' must be a number or a floating-point tensor (got {getattr(value, 'dtype', repr(value))})"
        )
    if value.dim() > 1:
        raise ValueError(f"'{name}' must be one number, or one for each head, [H] (got {list(value.shape)})")
    return value.reshape(-1), value.size(0) if value.dim() == 1 else None


def coefficient_heads(name: str, value: Tensor) -> int | None:
    """``H`` of coefficients ``[H, K + 1]``, or :obj:`None` for coefficients ``[K + 1]`` that all heads share.

    Raises:
        ValueError: If the tensor has another shape, or no coefficient.
        TypeError: If it is not floating point.
    """
    if value.dim() not in (1, 2) or value.size(-1) == 0:
        raise ValueError(f"'{name}' must be [K + 1] or [H, K + 1] (got {list(value.shape)})")
    check_floating(name, value)
    return value.size(0) if value.dim() == 2 else None


def check_time(time: Tensor) -> None:
    """Refuse diffusion times ``[H]`` that are negative or not finite, where they are `readable`. Raises ValueError."""
    if readable(time) and not bool(((time >= 0) & time.isfinite()).all()):
        raise ValueError(f"'time' must be a finite number of at least 0 (got {time.tolist()})")


def parameter_dtype(*parameters: float | Tensor | None) -> torch.dtype:
    """Dtype of a mask with these parameters: the widest of the tensors, or the default dtype if there is none."""
    dtypes = [x.dtype for x in parameters if isinstance(x, Tensor) and x.is_floating_point()]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()
