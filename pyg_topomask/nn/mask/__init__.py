"""Topological masks: modules that build a mask operator from a graph. All but `CausalMask` may learn parameters."""

from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.causal import CausalMask
from pyg_topomask.nn.mask.degree import DegreeMask
from pyg_topomask.nn.mask.forest import ForestMask
from pyg_topomask.nn.mask.grf import GRFMask
from pyg_topomask.nn.mask.grid_heat import GridHeatMask
from pyg_topomask.nn.mask.heat import HeatMask
from pyg_topomask.nn.mask.hop import HopMask
from pyg_topomask.nn.mask.low_rank import LowRankMask
from pyg_topomask.nn.mask.mixture import HeadMasks, MixtureMask, ProductMask
from pyg_topomask.nn.mask.power_series import PowerSeriesMask
from pyg_topomask.nn.mask.rwgnk import RWGNKMask
from pyg_topomask.nn.mask.toeplitz import ToeplitzMask
from pyg_topomask.nn.mask.tree import TreeMask

MASK: dict[str, type[Mask]] = {
    "grf": GRFMask,
    "rwgnk": RWGNKMask,
    "power_series": PowerSeriesMask,
    "heat": HeatMask,
    "grid_heat": GridHeatMask,
    "toeplitz": ToeplitzMask,
    "forest": ForestMask,
    "tree": TreeMask,
    "hop": HopMask,
    "degree": DegreeMask,
    "low_rank": LowRankMask,
    "causal": CausalMask,
}
"""Mask classes by the name that ``topomask.mask`` uses in configs."""

__all__ = [
    "MASK",
    "CausalMask",
    "DegreeMask",
    "ForestMask",
    "GRFMask",
    "GridHeatMask",
    "HeadMasks",
    "HeatMask",
    "HopMask",
    "LowRankMask",
    "Mask",
    "MixtureMask",
    "PowerSeriesMask",
    "ProductMask",
    "RWGNKMask",
    "ToeplitzMask",
    "TreeMask",
]
