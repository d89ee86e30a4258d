"""Predictions for nodes."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.nn.head.mlp import MLPHead
from pyg_topomask.nn.reset import Resettable


class NodeHead(Resettable):
    """An MLP for each node.

    Args:
        channels: Width ``C`` of the nodes.
        out_channels: Number of classes or targets.
        layers: Number of linear layers.
        dropout: Probability of zeroing an entry between layers, in training.
        act: Activation between layers, by PyG's names.
        l2_norm: Whether to scale hidden rows to length 1. Published results of GraphGPS include this scaling, because
            GraphGym's MLP always does it (with ReLU and without dropout).
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
