"""Learnable topological masks, one published topology per file."""

from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.grf import GRFMask

__all__ = ["GRFMask", "Mask"]
