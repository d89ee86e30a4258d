"""Dropout as a module."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import dropout


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` with the random numbers of `pyg_topomask.ops.dropout`, which are cheap on CPU.

    Raises:
        ValueError: If ``p`` is not in [0, 1]. Unlike PyTorch's module, this one also refuses NaN.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        if math.isnan(p):
            raise ValueError("'dropout' must be a probability (got nan)")

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)
