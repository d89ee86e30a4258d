"""Heads that turn node embeddings into predictions, called as ``head(x, graph)``."""

from collections.abc import Callable

from torch.nn import Module

from pyg_topomask.nn.head.edge import EdgeHead
from pyg_topomask.nn.head.graph import code_graph_head, graph_head, mlp_graph_head, san_graph_head
from pyg_topomask.nn.head.mlp import NodeHead

HEADS: dict[str, Callable[..., Module]] = {
    "graph": graph_head,
    "node": NodeHead,
    "inductive_node": NodeHead,
    "edge": EdgeHead,
    "inductive_edge": EdgeHead,
    "san_graph": san_graph_head,
    "mlp_graph": mlp_graph_head,
    "ogb_code_graph": code_graph_head,
}
"""GraphGPS's name -> head, built as ``head(channels, out_channels, …)``. GraphGPS's ``default`` is the head named after
the task's level. The caller selects the nodes or edges that count, such as those of a split."""
