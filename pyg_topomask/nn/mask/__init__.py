"""Learnable topological masks, one published topology per file."""

from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.grf import GRFMask
from pyg_topomask.nn.mask.rwgnk import RWGNKMask

__all__ = ["GRFMask", "Mask", "RWGNKMask"]
