"""Graph isomorphism convolution with edge features and an equivariant-stable gate."""

from torch import Tensor
from torch.nn import Module

from pyg_topomask.nn.conv.stable_gate import StableGate
from pyg_topomask.nn.edge_probe import EdgeProbe
from pyg_topomask.nn.reset import Resettable


class StableGINEConv(Resettable):
    r"""Graph isomorphism convolution with edge features and messages scaled by the gate of `StableGate`.

    .. math:: x_i' = h\Bigl(x_i + \sum_{j \to i} r_{ij}\, \mathrm{ReLU}(x_j + e_{ij})\Bigr)

    References: Hu et al., *Strategies for Pre-training Graph Neural Networks*, ICLR 2020, arXiv:1905.12265; Wang et
    al., ICLR 2022, arXiv:2203.00199, for the gate.

    Args:
        nn: The map :math:`h`.
        channels: Hidden width of the gate's MLP.

    Raises:
        ValueError: When called, if there are no positional encodings.
    """

    def __init__(self, nn: Module, channels: int) -> None:
        super().__init__()
        self.nn, self.gate, self.probe = nn, StableGate(channels), EdgeProbe()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, pe: Tensor | None = None) -> Tensor:
        """``[N, C] → [N, C]`` for edge features ``[E, C]`` and encodings ``pe [N, *]``; ValueError without ``pe``."""
        source, target = edge_index
        message = (x.index_select(0, source) + edge_attr).relu() * self.probe.scaled(self.gate(pe, edge_index))
        return self.nn(x.index_add(0, target, message.to(x.dtype)))
