"""Masks as matrices that are defined by their products: ``op @ x``."""

from pyg_topomask.operators.algebra import (
    BlockDiagonalOperator,
    HeadStackOperator,
    KroneckerOperator,
    ProductOperator,
    SumOperator,
)
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.bordered import BorderedOperator
from pyg_topomask.operators.causal import CausalOperator
from pyg_topomask.operators.dense import DenseOperator
from pyg_topomask.operators.entrywise import EntrywiseOperator
from pyg_topomask.operators.forest import ForestExpOperator
from pyg_topomask.operators.grf import GRFOperator
from pyg_topomask.operators.grid_heat import GridHeatOperator
from pyg_topomask.operators.heat import HeatOperator
from pyg_topomask.operators.hop import HopOperator
from pyg_topomask.operators.hypercube_heat import HypercubeHeatOperator
from pyg_topomask.operators.low_rank import LowRankOperator
from pyg_topomask.operators.ones import OnesOperator
from pyg_topomask.operators.padding import PaddingOperator
from pyg_topomask.operators.power_series import PowerSeriesOperator
from pyg_topomask.operators.scaled import ConstantOperator, DiagonalScaledOperator
from pyg_topomask.operators.sparse import SparseOperator
from pyg_topomask.operators.sparse_factor import SparseFactorOperator
from pyg_topomask.operators.toeplitz import ToeplitzOperator
from pyg_topomask.operators.tree_distance import TreeDistanceOperator

__all__ = [
    "BlockDiagonalOperator",
    "BorderedOperator",
    "CausalOperator",
    "ConstantOperator",
    "DenseOperator",
    "DiagonalScaledOperator",
    "EntrywiseOperator",
    "ForestExpOperator",
    "GRFOperator",
    "GridHeatOperator",
    "HeadStackOperator",
    "HeatOperator",
    "HopOperator",
    "HypercubeHeatOperator",
    "KroneckerOperator",
    "LowRankOperator",
    "MaskOperator",
    "OnesOperator",
    "PaddingOperator",
    "PowerSeriesOperator",
    "ProductOperator",
    "SparseFactorOperator",
    "SparseOperator",
    "SumOperator",
    "ToeplitzOperator",
    "TreeDistanceOperator",
]
