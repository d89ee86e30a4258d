"""Encoders of numbers that describe each node's position: return probabilities, heat, electrostatics."""

from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice
from pyg_topomask.nn.encoder.base import Encoder, raw_norm_layer, relu_mlp
from pyg_topomask.nn.norm import apply_norm


class StructuralEncoder(Encoder):
    """Linear map or MLP of the numbers that a transform stores for each node.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454, Table 1 and Section 3.1.

    Args:
        channels: Width of the encoding (``dim_pe``).
        in_channels: Numbers per node.
        model: ``"Linear"``, or ``"MLP"`` with ReLU and hidden width ``2 * channels``.
        layers: Layers of the MLP.
        raw_norm: ``"batch_norm"`` normalises each column first; no norm if :obj:`None`.

    Raises:
        ValueError: If a name is unknown. When called, if the graph has another count of numbers per node.
    """

    def __init__(
        self, channels: int, in_channels: int, model: str = "Linear", layers: int = 2, raw_norm: str | None = None
    ) -> None:
        super().__init__()
        check_choice("model", model.lower(), ("linear", "mlp"))
        self.channels, self.in_channels = channels, in_channels
        self.raw_norm = raw_norm_layer(raw_norm, in_channels)
        linear = model.lower() == "linear"
        self.encode: Module = (
            Linear(in_channels, channels) if linear else relu_mlp(in_channels, 2 * channels, channels, layers)
        )

    def forward(self, graph: Data) -> Tensor:
        """``[N, channels]``."""
        (table,) = self.read_tables(graph, self.in_channels)
        return self.encode(apply_norm(self.raw_norm, table))


class RWSE(StructuralEncoder):
    """Return probabilities of random walks, one for each number of steps.

    Reference: Dwivedi et al., *Graph Neural Networks with Learnable Structural and Positional Representations*, ICLR
    2022, arXiv:2110.07875. Arguments are those of `StructuralEncoder`.
    """

    requires = ("random_walk_diagonal",)


class HKdiagSE(StructuralEncoder):
    """Diagonal of the heat kernel, one number for each time; arguments are those of `StructuralEncoder`."""

    requires = ("heat_diagonal",)


class ElstaticSE(StructuralEncoder):
    """Statistics of the electrostatic potential between nodes; arguments are those of `StructuralEncoder`."""

    requires = ("electrostatic",)
