"""The convolutions for ``gt.layer_type``: PyG's own, with GraphGPS's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Linear, Module, Sequential
from torch_geometric.nn import GATConv, GCNConv, GENConv, GINConv, GINEConv, PNAConv, SAGEConv
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.nn import GatedGCN, StableGINEConv


@dataclass(frozen=True)
class ConvSettings:
    """Settings of a convolution: width, heads, activation, dropout, and whether edges have features."""

    channels: int
    heads: int = 1
    act: str = "relu"
    dropout: float = 0.0
    edges: bool = False
    stable: bool = False  # messages are gated by the distance of Laplacian encodings
    last: bool = False  # in the last layer, whose updated edges are not used
    alone: bool = False  # in custom_gnn, where an activation follows GCN, GAT and GINE

    @property
    def edge_dim(self) -> int | None:
        """Width of edge features."""
        return self.channels if self.edges else None


@dataclass(frozen=True)
class ConvEntry:
    """A convolution: its builder, its class, and whether it takes or needs edge features, or can be gated."""

    build: Callable[[ConvSettings], Module]
    source: type[Module]
    takes_edges: bool = False
    needs_edges: bool = False
    takes_pe: bool = False


def _mlp(settings: ConvSettings) -> Sequential:
    channels = settings.channels
    return Sequential(Linear(channels, channels), activation_resolver(settings.act), Linear(channels, channels))


def _gat(settings: ConvSettings) -> Module:
    channels, heads = settings.channels, settings.heads
    if settings.alone:
        return ActivatedConv(GATConv(channels, channels), settings.act)
    return GATConv(channels, channels // heads, heads=heads, edge_dim=settings.edge_dim)


class ActivatedConv(Module):
    """A convolution without edge features, followed by an activation, as in ``custom_gnn``."""

    def __init__(self, conv: Module, act: str) -> None:
        super().__init__()
        self.conv, self.act = conv, activation_resolver(act)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index))


class ActivatedEdgeConv(ActivatedConv):
    """The same for a convolution with edge features."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index, edge_attr))


def _gcn(settings: ConvSettings) -> Module:
    conv = GCNConv(settings.channels, settings.channels)
    return ActivatedConv(conv, settings.act) if settings.alone else conv


def _gine(settings: ConvSettings) -> Module:
    if settings.alone:
        return ActivatedEdgeConv(GINEConv(_mlp(settings)), settings.act)
    return StableGINEConv(_mlp(settings), settings.channels) if settings.stable else GINEConv(_mlp(settings))


def _gated_gcn(settings: ConvSettings) -> Module:
    return GatedGCN(
        settings.channels,
        settings.dropout,
        settings.act,
        equivariant_stable=settings.stable,
        update_edges=not settings.last,
    )


def _pna(settings: ConvSettings) -> Module:
    channels = settings.channels
    # The histogram of degrees is required, but has no effect, because the only scaler is the identity.
    return PNAConv(
        channels, channels, ["mean", "max", "sum"], ["identity"], deg=torch.tensor([0, 1]), edge_dim=settings.edge_dim
    )


CONVS: dict[str, ConvEntry] = {
    "GCN": ConvEntry(_gcn, GCNConv),
    "GIN": ConvEntry(lambda settings: GINConv(_mlp(settings)), GINConv),
    "GINE": ConvEntry(_gine, GINEConv, takes_edges=True, needs_edges=True, takes_pe=True),
    "GENConv": ConvEntry(lambda settings: GENConv(settings.channels, settings.channels), GENConv, takes_edges=True),
    "GAT": ConvEntry(_gat, GATConv, takes_edges=True),
    "PNA": ConvEntry(_pna, PNAConv, takes_edges=True),
    "CustomGatedGCN": ConvEntry(_gated_gcn, GatedGCN, takes_edges=True, needs_edges=True, takes_pe=True),
    "SAGE": ConvEntry(lambda settings: SAGEConv(settings.channels, settings.channels), SAGEConv),
}
"""Convolutions by their names in ``gt.layer_type``."""
