"""The convolutions for ``gt.layer_type``: PyG's own, with GraphGPS's settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, Sequential
from torch_geometric.nn import GATConv, GCNConv, GENConv, GINConv, GINEConv, PNAConv, RGCNConv, SAGEConv
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.checks import readable
from pyg_topomask.nn import GatedGCN, StableGINEConv

_Act = Callable[[], str]


@dataclass(frozen=True)
class ConvEntry:
    """A convolution: its builder, its class, and whether it takes or needs edge features, or can be gated.

    The builder takes, by name, the width ``channels``, ``heads`` and ``dropout``; ``act``, which reads the activation;
    ``edge_dim``, the width of edge features, or None; ``num_types``, the number of edge types if it takes them;
    ``stable``, whether messages are gated by the distance of Laplacian encodings; ``last``, whether it is in the last
    layer, whose updated edges are not used; and ``alone``, whether it is in ``custom_gnn``, where an activation follows
    GCN, GAT and GINE.
    """

    build: Callable[..., Module]
    source: type[Module]
    takes_edges: bool = False
    needs_edges: bool = False
    takes_pe: bool = False
    takes_types: bool = False


def _mlp(channels: int, act: _Act) -> Sequential:
    return Sequential(Linear(channels, channels), activation_resolver(act()), Linear(channels, channels))


def _gat(channels: int, heads: int, act: _Act, edge_dim: int | None, alone: bool, **_: Any) -> Module:
    if alone:
        return ActivatedConv(GATConv(channels, channels), act())
    return GATConv(channels, channels // heads, heads=heads, edge_dim=edge_dim)


class ActivatedConv(Module):
    """A convolution without edge features, followed by an activation, as in ``custom_gnn``."""

    def __init__(self, conv: Module, act: str) -> None:
        super().__init__()
        self.conv, self.act = conv, activation_resolver(act)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index))


class ActivatedWeightConv(ActivatedConv):
    """The same for a convolution with edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index, edge_weight))


class ActivatedEdgeConv(ActivatedConv):
    """The same for a convolution with edge features."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """``act(conv(x))``."""
        return self.act(self.conv(x, edge_index, edge_attr))


class TypedConv(RGCNConv):
    """RGCN that refuses missing types, and those that PyG's class would leave out without a message."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor | None = None) -> Tensor:
        """``[N, C] → [N, C]``, for edges with the types ``edge_type [E]``."""
        known = edge_type is not None and readable(edge_type) and edge_type.numel() > 0
        if edge_type is None or (known and not 0 <= int(edge_type.min()) <= int(edge_type.max()) < self.num_relations):
            got = None if edge_type is None else [int(edge_type.min()), int(edge_type.max())]
            raise ValueError(
                f"RGCN needs 'edge_type' on the graph, from 0 to {self.num_relations - 1} for each edge (got {got}); "
                "dataset.edge_encoder_num_types is the number of types"
            )
        return super().forward(x, edge_index, edge_type)


def _gcn(channels: int, act: _Act, alone: bool, **_: Any) -> Module:
    conv = GCNConv(channels, channels)
    return ActivatedWeightConv(conv, act()) if alone else conv


def _gine(channels: int, act: _Act, stable: bool, alone: bool, **_: Any) -> Module:
    mlp = _mlp(channels, act)
    if alone:
        return ActivatedEdgeConv(GINEConv(mlp), act())
    return StableGINEConv(mlp, channels) if stable else GINEConv(mlp)


def _gated_gcn(channels: int, dropout: float, act: _Act, stable: bool, last: bool, alone: bool, **_: Any) -> Module:
    name = "relu" if alone else act()  # as in GraphGPS
    return GatedGCN(channels, dropout, name, equivariant_stable=stable, update_edges=not last)


def _pna(channels: int, edge_dim: int | None, **_: Any) -> Module:
    # The histogram of degrees is required, but has no effect, because the only scaler is the identity.
    return PNAConv(
        channels, channels, ["mean", "max", "sum"], ["identity"], deg=torch.tensor([0, 1]), edge_dim=edge_dim
    )


CONVS: dict[str, ConvEntry] = {
    "GCN": ConvEntry(_gcn, GCNConv),
    "GIN": ConvEntry(lambda channels, act, **_: GINConv(_mlp(channels, act)), GINConv),
    "GINE": ConvEntry(_gine, GINEConv, takes_edges=True, needs_edges=True, takes_pe=True),
    "GENConv": ConvEntry(lambda channels, **_: GENConv(channels, channels), GENConv, takes_edges=True),
    "GAT": ConvEntry(_gat, GATConv, takes_edges=True),
    "PNA": ConvEntry(_pna, PNAConv, takes_edges=True),
    "CustomGatedGCN": ConvEntry(_gated_gcn, GatedGCN, takes_edges=True, needs_edges=True, takes_pe=True),
    "RGCN": ConvEntry(
        lambda channels, num_types, **_: TypedConv(channels, channels, num_types), RGCNConv, takes_types=True
    ),
    "SAGE": ConvEntry(lambda channels, **_: SAGEConv(channels, channels), SAGEConv),
}
"""Convolutions by their names in ``gt.layer_type``."""
