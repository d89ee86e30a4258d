"""A gate for edges, the distance between the positional encodings of their ends, and a convolution with it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Linear, Module, Sequential, Sigmoid
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.nn.reset import Resettable


class StableGate(Resettable):
    r"""Scalar gate :math:`r_{ij} = \mathrm{sigmoid}(\mathrm{MLP}(\|p_i - p_j\|^2))` of each edge, in (0, 1).

    Rotations and reflections of the encodings ``p`` do not change it. So with raw eigenvectors, neither their signs nor
    the basis of a repeated eigenvalue matter.

    Reference: Wang et al., *Equivariant and Stable Positional Encoding for More Powerful Graph Neural Networks*,
    ICLR 2022, arXiv:2203.00199, the PEG layer.

    Args:
        channels: Hidden width of the MLP.
        act: Activation of the MLP, by PyG's names.
    """

    def __init__(self, channels: int, act: str = "relu") -> None:
        super().__init__()
        self.mlp = Sequential(Linear(1, channels), activation_resolver(act), Linear(channels, 1), Sigmoid())

    def forward(self, pe: Tensor | None, edge_index: Tensor) -> Tensor:
        """Gates ``[E, 1]`` of the edges ``[2, E]`` for encodings ``pe [N, *]``.

        Raises:
            ValueError: If there are no encodings.
        """
        if pe is None:
            raise ValueError(
                "the equivariant-stable gate needs positional encodings: give 'pe' [N, k], which the encoder "
                "EquivStableLapPE makes from the transform AddLaplacianEncoding"
            )
        source, target = edge_index
        distance = (pe.index_select(0, target) - pe.index_select(0, source)).square().sum(1, keepdim=True)
        return self.mlp(distance)


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
        self.nn, self.gate = nn, StableGate(channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, pe: Tensor | None = None) -> Tensor:
        """``[N, C] → [N, C]`` for edge features ``[E, C]`` and encodings ``pe [N, *]``; ValueError without ``pe``."""
        source, target = edge_index
        message = (x.index_select(0, source) + edge_attr).relu() * self.gate(pe, edge_index)
        return self.nn(x.index_add(0, target, message.to(x.dtype)))
