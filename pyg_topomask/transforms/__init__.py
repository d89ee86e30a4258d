"""PyG transforms that prepare a graph for a mask or an attention."""

from pyg_topomask.transforms.base import apply_all
from pyg_topomask.transforms.encodings import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)
from pyg_topomask.transforms.expander_edges import AddExpanderEdges
from pyg_topomask.transforms.finding import that_add
from pyg_topomask.transforms.grid_shape import AddGridShape, AddPositions
from pyg_topomask.transforms.hops import AddHops
from pyg_topomask.transforms.precompute import precompute
from pyg_topomask.transforms.random_walks import AddRandomWalks
from pyg_topomask.transforms.relabel import RelabelNodes, far_apart
from pyg_topomask.transforms.tree_order import AddTreeOrder

__all__ = [
    "AddElectrostaticEncoding",
    "AddExpanderEdges",
    "AddGridShape",
    "AddHeatDiagonalEncoding",
    "AddHops",
    "AddLaplacianEncoding",
    "AddPositions",
    "AddRandomWalkEncoding",
    "AddRandomWalks",
    "AddRelativeWalkEncoding",
    "AddShortestPathBias",
    "AddTreeOrder",
    "RelabelNodes",
    "apply_all",
    "far_apart",
    "precompute",
    "that_add",
]
