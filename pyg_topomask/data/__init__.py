"""Large graphs: on disk, behind PyG's stores, and cut into parts at the cost of a part."""

from pyg_topomask.data.disk import DiskGraph, read_edges, save_edges, save_graph
from pyg_topomask.data.partition import partition
from pyg_topomask.data.source import GraphSource

__all__ = ["DiskGraph", "GraphSource", "partition", "read_edges", "save_edges", "save_graph"]
