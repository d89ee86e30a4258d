"""PyG transforms that prepare a graph for a mask or an attention."""

from pyg_topomask.transforms.diagonal_encodings import AddHeatDiagonalEncoding, AddRandomWalkEncoding
from pyg_topomask.transforms.electrostatic_encoding import AddElectrostaticEncoding
from pyg_topomask.transforms.expander_edges import AddExpanderEdges
from pyg_topomask.transforms.finding import that_add
from pyg_topomask.transforms.grid_shape import AddGridShape
from pyg_topomask.transforms.hops import AddHops
from pyg_topomask.transforms.laplacian_encoding import AddLaplacianEncoding
from pyg_topomask.transforms.positions import AddPositions
from pyg_topomask.transforms.precompute import precompute
from pyg_topomask.transforms.random_walks import AddRandomWalks
from pyg_topomask.transforms.relabel import RelabelNodes
from pyg_topomask.transforms.relative_walk_encoding import AddRelativeWalkEncoding
from pyg_topomask.transforms.shortest_path_bias import AddShortestPathBias
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
    "precompute",
    "that_add",
]
