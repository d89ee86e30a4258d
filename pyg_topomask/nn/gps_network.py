"""A whole network that reads a graph: encoders, GraphGPS layers, head."""

from __future__ import annotations

from copy import copy
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.gps_stack import GPSStack
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
    ) -> None:
        super().__init__()
        self.attends_edges = any(getattr(a, "edge_dim", None) for layer in layers for a in layer.attentions)
        takes_edges = layers.takes("edge_attr") or self.attends_edges
        for name, part in (("node_encoder", node_encoder), ("edge_encoder", edge_encoder if takes_edges else None)):
            width = getattr(part, "channels", layers.channels)
            if width != layers.channels:
                raise ValueError(f"'{name}' gives {width} channels, but the layers have {layers.channels}")
        if pe_encoder is not None and not layers.takes("pe"):
            raise ValueError("'pe_encoder' is given, but no convolution takes 'pe'; GatedGCN and StableGINEConv do")
        self.node_encoder, self.pe_encoder, self.bias_encoder = node_encoder, pe_encoder, bias_encoder
        self.edge_encoder = edge_encoder if takes_edges else None
        self.dropout = Dropout(dropout)
        self.layers, self.head = layers, head

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, each once."""
        parts = (self.node_encoder, self.edge_encoder, self.pe_encoder, self.bias_encoder, self.layers)
        names = [name for part in parts for name in getattr(part, "requires", ())]
        made = set() if self.bias_encoder is None else {BIAS}
        return tuple(name for name in dict.fromkeys(names) if name not in made)

    def forward(self, graph: Data) -> Tensor:
        """The head's prediction for a ``Data`` or ``Batch``."""
        return self.head(self.embed(graph), graph)

    def embed(self, graph: Data) -> Tensor:
        """Nodes ``[N, C]`` after the last layer."""
        x = self.dropout(self.node_encoder(graph))
        extra: dict[str, Any] = {}
        for name, encoder in (("edge_attr", self.edge_encoder), ("pe", self.pe_encoder)):
            if encoder is not None:
                extra[name] = encoder(graph)
        added: dict[str, Any] = {}
        if self.bias_encoder is not None:
            added[BIAS] = self.bias_encoder(graph)
        if self.attends_edges and "edge_attr" in extra:
            added["edge_attr"] = extra["edge_attr"]
        if added:
            graph = copy(graph)  # shallow: the caller's graph stays as it is
            for name, value in added.items():
                graph[name] = value
        batch = graph.get("batch")
        return self.layers(x, graph.edge_index, batch, graph, count_graphs(graph, batch), **extra)
