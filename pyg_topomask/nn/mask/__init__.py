"""Learnable topological masks, one published topology per file."""

from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.grf import GRFMask
from pyg_topomask.nn.mask.rwgnk import RWGNKMask

MASK: dict[str, type[Mask]] = {
    "grf": GRFMask,
    "rwgnk": RWGNKMask,
}
"""Mask classes by the name that ``topomask.mask`` uses in configs."""

__all__ = ["MASK", "GRFMask", "Mask", "RWGNKMask"]
