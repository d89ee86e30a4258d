"""Heads that turn node or graph embeddings into predictions."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Dropout, Linear, Module, Sequential
from torch_geometric.nn.resolver import activation_resolver


class MLPHead(Module):
    """MLP of equal widths, the last layer linear.

    Args:
        channels: Width of the input and the hidden layers.
        out_channels: Width of the output.
        num_layers: Linear layers.
        dropout: Probability of zeroing before each but the first, in training.
        act: Activation between them, by PyG's names.

    Raises:
        ValueError: If ``num_layers`` is not positive.
    """

    def __init__(
        self, channels: int, out_channels: int, num_layers: int = 1, dropout: float = 0.0, act: str = "relu"
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"a head has at least 1 layer (got {num_layers})")
        hidden: list[Module] = []
        for _ in range(num_layers - 1):
            hidden += [Linear(channels, channels), activation_resolver(act), Dropout(dropout)]
        self.layers = Sequential(*hidden, Linear(channels, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """``[*, channels] → [*, out_channels]``."""
        return self.layers(x)
