"""Encoders of numbers that describe each node's place: return probabilities, heat, electrostatics."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data

from pyg_topomask.nn.encoder.base import Encoder, raw_norm_layer, relu_mlp
from pyg_topomask.nn.norm import apply_norm
from pyg_topomask.ops.encodings.pair_encodings import NUM_ELECTROSTATIC


class StructuralEncoder(Encoder):
    """Linear map or MLP of a table with one row per node.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454, Table 1 and Section 3.1; the random-walk encoding is
    that of Dwivedi et al., *Graph Neural Networks with Learnable Structural and Positional Representations*, ICLR 2022,
    arXiv:2110.07875.

    Args:
        channels: Width of the encoding (``dim_pe``).
        in_channels: Columns of the table: the number of steps or times.
        attribute: Its name on the graph.
        remedy: The transform that adds it.
        model: ``"Linear"``, or ``"MLP"`` with ReLU and hidden width ``2 * channels``.
        layers: Layers of the MLP.
        raw_norm: ``"batch_norm"`` normalises each column first; :obj:`None` does not.

    Raises:
        ValueError: If a name is unknown; on a graph whose table has another number of columns.
    """

    def __init__(
        self,
        channels: int,
        in_channels: int,
        attribute: str,
        remedy: str,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
    ) -> None:
        super().__init__()
        if model.lower() not in ("linear", "mlp"):
            raise ValueError(f"'model' of {type(self).__name__} must be Linear or MLP (got {model!r})")
        self.channels, self.in_channels = channels, in_channels
        self.requires, self.remedy = (attribute,), f"the transform {remedy}"
        self.raw_norm = raw_norm_layer(raw_norm, in_channels)
        linear = model.lower() == "linear"
        self.encode: Module = (
            Linear(in_channels, channels) if linear else relu_mlp(in_channels, 2 * channels, channels, layers)
        )

    def forward(self, graph: Data) -> Tensor:
        """``[N, channels]``."""
        (table,) = self.read(graph)
        if table.dim() != 2 or table.size(1) != self.in_channels:
            raise ValueError(
                f"{type(self).__name__} was built for {self.in_channels} columns in '{self.requires[0]}' "
                f"(got {list(table.shape)}); give the encoder and the transform the same steps"
            )
        return self.encode(apply_norm(self.raw_norm, table))


class RWSE(StructuralEncoder):
    """Return probabilities of random walks of several lengths; arguments of `StructuralEncoder`."""

    def __init__(
        self,
        channels: int,
        in_channels: int,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
        name: str = "random_walk",
    ) -> None:
        super().__init__(channels, in_channels, f"{name}_diagonal", "AddRandomWalkEncoding", model, layers, raw_norm)


class HKdiagSE(StructuralEncoder):
    """Diagonal of the heat kernel at several times; arguments of `StructuralEncoder`."""

    def __init__(
        self,
        channels: int,
        in_channels: int,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
        name: str = "heat",
    ) -> None:
        super().__init__(channels, in_channels, f"{name}_diagonal", "AddHeatDiagonalEncoding", model, layers, raw_norm)


class ElstaticSE(StructuralEncoder):
    """Statistics of the electrostatic potential between nodes; arguments of `StructuralEncoder`."""

    def __init__(
        self,
        channels: int,
        in_channels: int = NUM_ELECTROSTATIC,
        model: str = "Linear",
        layers: int = 2,
        raw_norm: str | None = None,
        name: str = "electrostatic",
    ) -> None:
        super().__init__(channels, in_channels, name, "AddElectrostaticEncoding", model, layers, raw_norm)
