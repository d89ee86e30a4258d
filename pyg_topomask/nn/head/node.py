"""Predictions for nodes."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn.head.mlp import MLPHead


class NodeHead(Module):
    """An MLP for each node.

    Args:
        channels: Width ``C`` of the nodes.
        out_channels: Classes or targets.
        layers: Linear layers.
        dropout: Probability of zeroing between them, in training.
        act: Activation between them, by PyG's names.
        l2_norm: Whether hidden rows are scaled to length 1. Results published with GraphGPS have it, by way of
            GraphGym's MLP, whose hidden layers always do so (and have ReLU and no dropout).
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        layers: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        l2_norm: bool = True,
    ) -> None:
        super().__init__()
        self.mlp = MLPHead(channels, out_channels, layers, dropout, act, l2_norm)

    def forward(self, x: Tensor, graph: Data | None = None) -> Tensor:
        """``[N, C] → [N, out_channels]``."""
        return self.mlp(x)
