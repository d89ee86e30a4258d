"""Dropout as a module."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import dropout


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout`, drawn as in `pyg_topomask.ops.dropout`, which costs little on CPU.

    Raises:
        ValueError: If ``p`` is not in [0, 1]; PyTorch's takes NaN.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        if math.isnan(p):
            raise ValueError("'dropout' must be a probability (got nan)")

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)
