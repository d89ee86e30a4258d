"""PyG transforms that prepare a graph for a mask or an attention."""

from pyg_topomask.transforms.expander_edges import AddExpanderEdges
from pyg_topomask.transforms.random_walks import AddRandomWalks

__all__ = ["AddExpanderEdges", "AddRandomWalks"]
