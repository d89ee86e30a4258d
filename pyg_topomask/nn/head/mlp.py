"""The MLP at the end of every head."""

from functools import partial

from torch import Tensor
from torch.nn import Linear, Module, Sequential
from torch.nn.functional import normalize
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.norm import build_act
from pyg_topomask.nn.reset import Resettable


class MLPHead(Resettable):
    """MLP with hidden layers of equal width.

    Args:
        channels: Width of the hidden layers.
        out_channels: Width of the output.
        layers: Number of linear layers.
        dropout: Probability of zeroing an entry before every layer but the first, in training.
        act: Activation between layers, by PyG's names, or a module.
        l2_norm: Whether to scale hidden rows to length 1 after the activation.
        in_channels: Width of the input; ``channels`` if :obj:`None`.

    Raises:
        TypeError: If ``layers`` is not an integer.
        ValueError: If ``layers`` is not positive, or ``dropout`` is out of range.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        layers: int = 1,
        dropout: float = 0.0,
        act: str | Module = "relu",
        l2_norm: bool = False,
        in_channels: int | None = None,
    ) -> None:
        super().__init__()
        layers = check_integer("layers", layers, 1)
        widths = [channels if in_channels is None else in_channels, *[channels] * (layers - 1)]
        hidden: list[Module] = []
        for width in widths[:-1]:
            hidden += [Linear(width, channels), build_act(act)]
            hidden += [_UnitRows(), Dropout(dropout)] if l2_norm else [Dropout(dropout)]
        self.layers = Sequential(*hidden, Linear(widths[-1], out_channels))

    def forward(self, x: Tensor, graph: Data | None = None) -> Tensor:
        """``[*, in_channels] → [*, out_channels]``."""
        return self.layers(x)


NodeHead = partial(MLPHead, l2_norm=True)
"""An MLP for each node. Published results of GraphGPS scale hidden rows to length 1, because GraphGym's MLP always does
it (with ReLU and without dropout)."""


class _UnitRows(Module):
    """Scales rows to length 1; a zero row is unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=-1)
