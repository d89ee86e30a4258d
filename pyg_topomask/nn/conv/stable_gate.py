"""A gate for edges: the distance between the positional encodings of their ends."""

from torch import Tensor
from torch.nn import Linear, Sequential, Sigmoid
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
