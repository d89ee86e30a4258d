"""One extra node per graph that attends to all others, and from which the graph can be predicted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import normal_
from torch_geometric.data import Data

from pyg_topomask.nn.graph_attributes import with_attributes
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.ops.attention.full_softmax import all_pairs


class GraphToken(Module):
    r"""Puts a learned node without edges in front of each graph's nodes.

    Attention treats it like any other node, with one learned bias for all pairs that contain it. Message passing does
    not reach it. (GraphGPS inserts the nodes without renumbering ``edge_index``, so that its edges join wrong nodes.)

    Reference: Ying et al., *Do Transformers Really Perform Badly for Graph Representation?* (Graphormer), NeurIPS 2021,
    arXiv:2106.05234, Section 3.2.

    Args:
        channels: Width ``C`` of the nodes.
        heads: Heads ``H`` of the attention.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.node = Parameter(normal_(torch.empty(1, channels), std=0.02))
        self.pair = Parameter(normal_(torch.empty(1, heads), std=0.02))

    def insert(self, x: Tensor, graph: Data, bias: Tensor | None = None) -> tuple[Tensor, Data, Tensor | None, Tensor]:
        """Insert the tokens among the nodes and the biases.

        Args:
            x: Nodes, shape ``[N, C]``.
            graph: The ``Data`` or ``Batch``; it is not changed.
            bias: Bias of each pair, shape ``[P, H]``, or :obj:`None`.

        Returns:
            The ``N + B`` nodes and tokens ``[N + B, C]``; a copy of the graph with their ``edge_index`` and ``batch``;
            the bias of their pairs, or :obj:`None`; and the position of each node among them, ``[N]``.
        """
        given = graph.get("batch")
        num_graphs = count_graphs(graph, given)
        batch = x.new_zeros(x.size(0), dtype=torch.long) if given is None else given
        position = torch.arange(batch.numel(), device=x.device) + batch + 1
        token = torch.ones(batch.numel() + num_graphs, dtype=torch.bool, device=x.device)
        token[position] = False
        out = self.node.to(x.dtype).expand(token.numel(), -1).index_copy(0, position, x)
        of_token = torch.arange(num_graphs, device=x.device)
        batch = token.long().masked_scatter(token, of_token).masked_scatter(~token, batch)
        edges = position[graph.edge_index]
        wider = with_attributes(graph, batch=batch, edge_index=edges, num_nodes=token.numel())
        if bias is not None:
            query, key = all_pairs(batch)
            of_nodes = (~(token[query] | token[key])).nonzero().squeeze(1)
            bias = self.pair.to(bias.dtype).expand(query.numel(), -1).index_copy(0, of_nodes, bias)
        return out, wider, bias, position
