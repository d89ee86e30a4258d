"""The convolutions that ``gt.layer_type`` names: PyG's own, with the settings GraphGPS gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.nn import Linear, Module, Sequential
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, SAGEConv
from torch_geometric.nn.resolver import activation_resolver


def _mlp(channels: int, act: str) -> Sequential:
    return Sequential(Linear(channels, channels), activation_resolver(act), Linear(channels, channels))


def _gcn(channels: int, heads: int, act: str, edges: bool) -> Module:
    return GCNConv(channels, channels)


def _gin(channels: int, heads: int, act: str, edges: bool) -> Module:
    return GINConv(_mlp(channels, act))


def _gine(channels: int, heads: int, act: str, edges: bool) -> Module:
    return GINEConv(_mlp(channels, act))


def _gat(channels: int, heads: int, act: str, edges: bool) -> Module:
    return GATConv(channels, channels // heads, heads=heads, edge_dim=channels if edges else None)


def _sage(channels: int, heads: int, act: str, edges: bool) -> Module:
    return SAGEConv(channels, channels)


@dataclass(frozen=True)
class ConvEntry:
    """How a convolution is built from (channels, heads, act, edges), and whether it takes edge features."""

    build: Callable[[int, int, str, bool], Module]
    takes_edges: bool = False
    needs_edges: bool = False


CONVS: dict[str, ConvEntry] = {
    "GCN": ConvEntry(_gcn),
    "GIN": ConvEntry(_gin),
    "GINE": ConvEntry(_gine, takes_edges=True, needs_edges=True),
    "GAT": ConvEntry(_gat, takes_edges=True),
    "SAGE": ConvEntry(_sage),
}
"""Name in ``gt.layer_type`` -> convolution."""
