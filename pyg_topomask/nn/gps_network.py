"""A whole network that reads a graph: encoders, GraphGPS layers, head."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.pool import count_graphs

BIAS = "attn_bias"
"""Attribute under which attention finds the bias of pairs: build it as ``FullAttention(…, attn_bias="attn_bias")``."""


class GPSNetwork(Module):
    """Encoders, the layers of a `GPSStack` and a head, called as ``network(graph)``.

    Reference: Rampášek et al., *Recipe for a General, Powerful, Scalable Graph Transformer*, NeurIPS 2022,
    arXiv:2205.12454.

    .. code-block:: python

        encoder = ComposedNodeEncoder(96, AtomEncoder, [LapPE(16)])
        layers = GPSStack(96, 4, lambda n: GatedGCN(96, update_edges=n < 3), lambda n: KMIPAttention(96, 4))
        network = GPSNetwork(encoder, layers, GraphHead(96, 10), edge_encoder=BondEncoder(96))
        prediction = network(batch)  # [B, 10]

    Args:
        node_encoder: ``encoder(graph) → [N, C]``.
        layers: The layers, of width ``C``.
        head: ``head(x, graph)`` → prediction.
        edge_encoder: ``encoder(graph) → [E, C]``, for convolutions that take ``edge_attr`` and attentions with
            ``edge_dim``, which read it as ``graph.edge_attr``; left out if there are neither.
        pe_encoder: ``encoder(graph) → [N, *]``, for convolutions that take ``pe``.
        bias_encoder: ``encoder(graph) → [P, H]`` for every pair of nodes, which attention reads as ``graph.attn_bias``.
        dropout: Probability of zeroing after the node encoder, in training.
        graph_token: One more node per graph among those that the layers see; not handed to the head, or with
            ``pool_token`` in place of the others.
        pool_token: Whether the head gets the graph tokens alone, one per graph, whatever its pooling.

    Raises:
        ValueError: If widths differ, or there is a ``pe_encoder`` that no convolution has a use for.
    """

    def __init__(
        self,
        node_encoder: Module,
        layers: GPSStack,
        head: Module,
        edge_encoder: Module | None = None,
        pe_encoder: Module | None = None,
        bias_encoder: Module | None = None,
        dropout: float = 0.0,
        graph_token: GraphToken | None = None,
        pool_token: bool = False,
    ) -> None:
        super().__init__()
        self.attends_edges = any(
            isinstance(attn, Attention) and attn.edge_dim is not None for layer in layers for attn in layer.attentions
        )
        takes_edges = layers.takes("edge_attr") or self.attends_edges
        for name, part in (("node_encoder", node_encoder), ("edge_encoder", edge_encoder if takes_edges else None)):
            width = getattr(part, "channels", layers.channels)
            if width != layers.channels:
                raise ValueError(f"'{name}' gives {width} channels, but the layers have {layers.channels}")
        if pe_encoder is not None and not layers.takes("pe"):
            raise ValueError("'pe_encoder' is given, but no convolution takes 'pe'; GatedGCN and StableGINEConv do")
        self.node_encoder, self.pe_encoder, self.bias_encoder = node_encoder, pe_encoder, bias_encoder
        self.edge_encoder = edge_encoder if takes_edges else None
        if pool_token and graph_token is None:
            raise ValueError("'pool_token' needs a 'graph_token'")
        self.dropout, self.graph_token, self.pool_token = Dropout(dropout), graph_token, pool_token
        self.layers, self.head = layers, head

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, each once."""
        parts = (self.node_encoder, self.edge_encoder, self.pe_encoder, self.bias_encoder, self.layers)
        made = set() if self.bias_encoder is None else {BIAS}
        return tuple(name for name in requirements_of(*parts) if name not in made)

    def forward(self, graph: Data) -> Tensor:
        """The head's prediction for a ``Data`` or ``Batch``."""
        x = self.embed(graph)
        if self.pool_token:  # each token is a graph of its own
            graph = Data(x=x, batch=torch.arange(x.size(0), device=x.device))
        return self.head(x, graph)

    def embed(self, graph: Data) -> Tensor:
        """Nodes ``[N, C]`` after the last layer; the tokens ``[B, C]`` with ``pool_token``."""
        x = self.dropout(self.node_encoder(graph))
        extra: dict[str, Any] = {}
        for name, encoder in (("edge_attr", self.edge_encoder), ("pe", self.pe_encoder)):
            if encoder is not None:
                extra[name] = encoder(graph)
        bias = None if self.bias_encoder is None else self.bias_encoder(graph)
        given, place = graph, None
        if self.graph_token is not None:
            x, graph, bias, place = self.graph_token.insert(x, graph, bias)
            if "pe" in extra:
                extra["pe"] = extra["pe"].new_zeros(x.size(0), extra["pe"].size(1)).index_copy(0, place, extra["pe"])
        graph = copy(graph) if graph is given else graph  # shallow: the caller's graph stays as it is
        if bias is not None:
            graph[BIAS] = bias
        if self.attends_edges:
            graph.edge_attr = extra["edge_attr"]
        batch = graph.get("batch")
        x = self.layers(x, graph.edge_index, batch, graph, count_graphs(graph, batch), **extra)
        if place is None:
            return x
        if not self.pool_token:
            return x.index_select(0, place)
        tokens = torch.ones(x.size(0), dtype=torch.bool, device=x.device).index_fill(0, place, False)
        return x[tokens]
