"""Masks as matrices that are known by their products: ``op @ x``."""

from pyg_topomask.operators.algebra import (
    BlockDiagonalOperator,
    HeadStackOperator,
    KroneckerOperator,
    SumOperator,
)
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.dense import DenseOperator
from pyg_topomask.operators.grf import GRFOperator
from pyg_topomask.operators.grid_heat import GridHeatOperator
from pyg_topomask.operators.hypercube_heat import HypercubeHeatOperator
from pyg_topomask.operators.ones import OnesOperator
from pyg_topomask.operators.scaled import ConstantOperator, DiagonalScaledOperator, ScaledOperator
from pyg_topomask.operators.sparse_factor import SparseFactorOperator
from pyg_topomask.operators.toeplitz import ToeplitzOperator

__all__ = [
    "BlockDiagonalOperator",
    "ConstantOperator",
    "DenseOperator",
    "DiagonalScaledOperator",
    "GRFOperator",
    "GridHeatOperator",
    "HeadStackOperator",
    "HypercubeHeatOperator",
    "KroneckerOperator",
    "MaskOperator",
    "OnesOperator",
    "ScaledOperator",
    "SparseFactorOperator",
    "SumOperator",
    "ToeplitzOperator",
]
