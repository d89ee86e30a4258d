"""Graph isomorphism convolution with edge features and an equivariant-stable gate."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GINEConv

from pyg_topomask.nn.conv.stable_gate import StableGate


class StableGINEConv(GINEConv):
    r"""PyG's :class:`GINEConv` whose messages are scaled by the gate of `StableGate`.

    .. math:: x_i' = h\Bigl((1 + \epsilon) x_i + \sum_{j \to i} r_{ij}\, \mathrm{ReLU}(x_j + e_{ij})\Bigr)

    References: Hu et al., *Strategies for Pre-training Graph Neural Networks*, ICLR 2020, arXiv:1905.12265; Wang et
    al., ICLR 2022, arXiv:2203.00199, for the gate.

    Args:
        nn: The map :math:`h`.
        channels: Hidden width of the gate's MLP.
        **kwargs: Of :class:`GINEConv`.
    """

    def __init__(self, nn: Module, channels: int, **kwargs: object) -> None:
        super().__init__(nn, **kwargs)
        self.gate = StableGate(channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, pe: Tensor | None = None) -> Tensor:
        """``[N, C] → [N, C]``, for edge features ``[E, C]`` and encodings ``pe`` ``[N, *]``."""
        scale = self.gate(pe, edge_index)
        out = self.propagate(edge_index, x=(x, x), edge_attr=edge_attr, scale=scale)
        return self.nn(out + (1 + self.eps) * x)

    def message(self, x_j: Tensor, edge_attr: Tensor, scale: Tensor) -> Tensor:
        """Gated messages ``[E, C]``."""
        return super().message(x_j, edge_attr) * scale
