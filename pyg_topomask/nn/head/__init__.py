"""Heads that turn node embeddings into predictions, called as ``head(x, graph)``."""

from collections.abc import Callable

from torch.nn import Module

from pyg_topomask.nn.head.edge import EdgeHead
from pyg_topomask.nn.head.graph import CodeGraphHead, GraphHead, MLPGraphHead, SANGraphHead
from pyg_topomask.nn.head.mlp import NodeHead

HEADS: dict[str, Callable[..., Module]] = {
    "graph": GraphHead,
    "node": NodeHead,
    "inductive_node": NodeHead,
    "edge": EdgeHead,
    "inductive_edge": EdgeHead,
    "san_graph": SANGraphHead,
    "mlp_graph": MLPGraphHead,
    "ogb_code_graph": CodeGraphHead,
}
"""GraphGPS's name -> head, built as ``cls(channels, out_channels, …)``. GraphGPS's ``default`` is the head named after
the task's level. The caller selects the nodes or edges that count, such as those of a split."""
