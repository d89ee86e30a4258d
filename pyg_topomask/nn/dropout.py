"""Dropout as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import dropout


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout`, drawn as in `pyg_topomask.ops.dropout`, which costs little on CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)
