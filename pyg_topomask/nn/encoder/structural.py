"""Encoders of numbers that describe each node's position: return probabilities, heat, electrostatics."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data

from pyg_topomask.nn.encoder.base import Encoder, named_transform, raw_norm_layer, relu_mlp
from pyg_topomask.nn.norm import apply_norm
from pyg_topomask.ops.encodings.pair_encodings import NUM_ELECTROSTATIC


class StructuralEncoder(Encoder):
    """Linear map or MLP of the numbers that a transform stores for each node.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454, Table 1 and Section 3.1.

    Args:
        channels: Width of the encoding (``dim_pe``).
        in_channels: Numbers per node.
        model: ``"Linear"``, or ``"MLP"`` with ReLU and hidden width ``2 * channels``.
        layers: Layers of the MLP.
        raw_norm: ``"batch_norm"`` normalises each column first; no norm if :obj:`None`.
        name: Name given to the transform; its default name if :obj:`None`.

    Raises:
        ValueError: If a name is unknown. When called, if the graph has another count of numbers per node.
    """

    transform: ClassVar[str]
    """The transform that stores the numbers."""
    attribute: ClassVar[str]
    """Name of the graph attribute, where ``{name}`` is the transform's name."""
    default_name: ClassVar[str]
    """Default name of the transform."""

    def __init__(
        self,
        channels: int,
        in_channels: int,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if model.lower() not in ("linear", "mlp"):
            raise ValueError(f"'model' of {type(self).__name__} must be Linear or MLP (got {model!r})")
        self.channels, self.in_channels = channels, in_channels
        name = self.default_name if name is None else name
        self.requires = (self.attribute.format(name=name),)
        self.remedy = named_transform(self.transform, name, self.default_name)
        self.raw_norm = raw_norm_layer(raw_norm, in_channels)
        linear = model.lower() == "linear"
        self.encode: Module = (
            Linear(in_channels, channels) if linear else relu_mlp(in_channels, 2 * channels, channels, layers)
        )

    def forward(self, graph: Data) -> Tensor:
        """``[N, channels]``."""
        return self.encode(apply_norm(self.raw_norm, self.read_table(graph, self.in_channels)))


class RWSE(StructuralEncoder):
    """Return probabilities of random walks, one for each number of steps.

    Reference: Dwivedi et al., *Graph Neural Networks with Learnable Structural and Positional Representations*, ICLR
    2022, arXiv:2110.07875. Arguments are those of `StructuralEncoder`.
    """

    transform, attribute, default_name = "AddRandomWalkEncoding", "{name}_diagonal", "random_walk"


class HKdiagSE(StructuralEncoder):
    """Diagonal of the heat kernel, one number for each time; arguments are those of `StructuralEncoder`."""

    transform, attribute, default_name = "AddHeatDiagonalEncoding", "{name}_diagonal", "heat"


class ElstaticSE(StructuralEncoder):
    """Statistics of the electrostatic potential between nodes; arguments are those of `StructuralEncoder`."""

    transform, attribute, default_name = "AddElectrostaticEncoding", "{name}", "electrostatic"

    def __init__(
        self,
        channels: int,
        in_channels: int = NUM_ELECTROSTATIC,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(channels, in_channels, model, layers, raw_norm, name)
