"""Dropout that is fast on CPU, where most of the time is spent on drawing the mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_LEVELS = 2**16
_PER_DRAW = 4  # 16-bit numbers in one 64-bit draw


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each entry with probability ``p`` and scale the others so that the expectation is unchanged.

    On CPU, one 64-bit draw of torch's generator decides on four entries. PyTorch makes one draw per entry, without
    vector instructions: on two cores with 28,556 × 96 entries, this function took 8 ms instead of 18 ms, and a quarter
    of the memory for the mask. For this, ``p`` is rounded to a multiple of 2⁻¹⁶, and the scale matches the rounded
    value. On other devices, under ``torch.compile`` and if ``p`` rounds to 0 or 1, PyTorch's own dropout is used.

    Args:
        x: Any shape, floating point.
        p: Probability of zeroing.
        training: Whether entries are dropped; if false, ``x`` is returned.

    Raises:
        ValueError: If ``p`` is not a probability.
    """
    dropped = round(p * _LEVELS)
    if not training or x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < dropped < _LEVELS:
        return functional.dropout(x, p, training)
    draws = torch.empty(-(-x.numel() // _PER_DRAW), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _LEVELS // 2
    return (x * keep).mul_(_LEVELS / (_LEVELS - dropped))
