"""Large graphs: on disk, behind PyG's stores, and cut into parts at the cost of a part."""

from pyg_topomask.data.disk import DiskGraph, read_edges, save_edges, save_graph, with_arrays
from pyg_topomask.data.graph_parts import GraphParts, TargetParts, WalkNeighborhoods, split
from pyg_topomask.data.partition import partition
from pyg_topomask.data.source import GraphSource, mapped
from pyg_topomask.data.walk_shards import prepare_shards, write_shards

__all__ = [
    "DiskGraph",
    "GraphParts",
    "GraphSource",
    "TargetParts",
    "WalkNeighborhoods",
    "mapped",
    "partition",
    "prepare_shards",
    "read_edges",
    "save_edges",
    "save_graph",
    "split",
    "with_arrays",
    "write_shards",
]
