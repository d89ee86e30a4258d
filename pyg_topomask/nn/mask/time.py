"""Masks of diffusion with a learnable time."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from pyg_topomask.nn.config_keys import keys_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.ops.numerics import at_least_float32


class DiffusionMask(Mask):
    r"""Base of the masks with a diffusion time :math:`\lambda = \lambda_{\max}\, \sigma(\theta)`, learned per head.

    The time stays in :math:`(0, \lambda_{\max})`, so that training can neither make it negative nor the cost of a
    product, which grows with the time, arbitrarily large.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        time: Initial time.
        max_time: Upper end of the range.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If ``heads`` is not positive, or ``time`` is not in the range.
    """

    config_keys = keys_of("heads")

    def __init__(self, heads: int, time: float, max_time: float) -> None:
        super().__init__(heads)
        if not 0 < time < max_time < float("inf"):
            raise ValueError(f"'time' must be above 0 and below 'max_time' (got {time} and {max_time})")
        self.max_time = max_time
        self.raw_time = self.learned(torch.tensor(log(time / (max_time - time)), dtype=torch.float64, device="cpu"))

    @property
    def time(self) -> Tensor:
        """Diffusion time, a scalar or ``[H]``."""
        (raw,) = at_least_float32(self.raw_time)
        return self.max_time * raw.sigmoid()
