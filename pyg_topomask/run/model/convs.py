"""The convolutions that ``gt.layer_type`` names: PyG's own, with the settings GraphGPS gives them."""

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
    """What a convolution may depend on: width, heads, activation, dropout, and whether edges carry features."""

    channels: int
    heads: int = 1
    act: str = "relu"
    dropout: float = 0.0
    edges: bool = False
    stable: bool = False  # gates by the distance of Laplacian encodings
    last: bool = False  # of the last layer, whose edges nobody reads
    alone: bool = False  # in custom_gnn, which puts an activation after GCN, GAT and GINE

    @property
    def edge_dim(self) -> int | None:
        """Width of edge features."""
        return self.channels if self.edges else None


@dataclass(frozen=True)
class ConvEntry:
    """How a convolution is built, its class, and whether it takes edge features and gates by encodings."""

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
    """A convolution and an activation after it, as in ``custom_gnn``. It reads no edge features."""

    def __init__(self, conv: Module, act: str) -> None:
        super().__init__()
        self.conv, self.act = conv, activation_resolver(act)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index))


class ActivatedEdgeConv(ActivatedConv):
    """The same for a convolution that reads edge features."""

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
    # The only scaler is the identity, so the histogram of degrees, which the class asks for, has no influence.
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
"""Name in ``gt.layer_type`` -> convolution."""
