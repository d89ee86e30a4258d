"""Encoders of node and edge features: categories, numbers, or no features."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, EmbeddingBag, Linear, ModuleList, Parameter
from torch.nn.functional import normalize
from torch.nn.init import normal_, xavier_uniform_
from torch_geometric.data import Data
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.checks import check_integer, holds
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.encoder.base import Encoder
from pyg_topomask.nn.norm import apply_norm

ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Numbers of categories of OGB's nine atom features: atomic number, chirality, degree, charge, hydrogens, radical
electrons, hybridisation, aromatic, in a ring. Reference: Hu et al., *Open Graph Benchmark*, NeurIPS 2020,
arXiv:2005.00687."""
BOND_SIZES = (5, 6, 2)
"""Numbers of categories of OGB's three bond features: type, stereo, conjugated."""
AST_SIZES = (98, 10030, 21)
"""Numbers of ogbg-code2's node types, node attributes, and depths 0 to 20."""


class CategoricalEncoder(Encoder):
    """Sums one learned vector for each column of integer features.

    Args:
        channels: Width ``C``.
        sizes: Number of categories of each column.
        attribute: Name of the features, ``"x"`` or ``"edge_attr"``.

    Raises:
        ValueError: When called, if the graph has another number of columns or a category is out of range; on CUDA, the
            latter fails a device-side assertion instead.
    """

    size: Tensor

    def __init__(self, channels: int, sizes: Sequence[int], attribute: str) -> None:
        super().__init__()
        self.channels, self.sizes, self.attribute, self.requires = channels, tuple(sizes), attribute, (attribute,)
        self.table = EmbeddingBag(sum(sizes), channels, mode="sum")
        self.register_buffer("size", torch.tensor(sizes), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters again, and the numbers of categories, which a module on the meta device has not."""
        for part in self.table.weight.data.split(list(self.sizes)):
            xavier_uniform_(part)
        self.size.copy_(torch.tensor(self.sizes, device="cpu"))

    def columns(self, graph: Data) -> Tensor:
        """The integer features of a graph, ``[rows, len(sizes)]``."""
        value = self.read(graph)[0]
        return value.unsqueeze(1) if value.dim() == 1 else value

    def forward(self, graph: Data) -> Tensor:
        """``[rows, C]``."""
        value = self.columns(graph)
        if value.dim() != 2 or value.size(1) != len(self.sizes) or value.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes {len(self.sizes)} integer columns in '{self.attribute}' "
                f"(got {list(value.shape)}, {value.dtype})"
            )
        known = ((value >= 0) & (value < self.size)).all(0)
        message = f"{type(self).__name__}: '{self.attribute}' has a category outside the ranges {list(self.sizes)}"
        if not holds(known.all(), message):
            column = int((~known).nonzero()[0])
            raise ValueError(
                f"{message}: column {column} holds {int(value[:, column].min())} to {int(value[:, column].max())}"
            )
        return self.table(value + self.size.cumsum(0) - self.size)  # after the vectors of the columns before


AtomEncoder = partial(CategoricalEncoder, sizes=ATOM_SIZES, attribute="x")
"""OGB's atoms: ``x [N, 9]``."""
BondEncoder = partial(CategoricalEncoder, sizes=BOND_SIZES, attribute="edge_attr")
"""OGB's bonds: ``edge_attr [E, 3]``."""
ASTNodeEncoder = partial(CategoricalEncoder, sizes=AST_SIZES, attribute="x")
"""Nodes of ogbg-code2's syntax trees: type, attribute and depth, ``x [N, 3]``. Deeper nodes count as depth 20."""
ASTEdgeEncoder = partial(CategoricalEncoder, sizes=(2, 2), attribute="edge_attr")
"""Edges of ogbg-code2: ``edge_attr [E, 2]``, whether an edge to the next token and whether an inverse edge."""


class TypeDictNodeEncoder(CategoricalEncoder):
    """One type per node: the first column of ``x``. ZINC has 28 types, AQSOL 65."""

    def __init__(self, channels: int, num_types: int) -> None:
        super().__init__(channels, (num_types,), "x")

    def columns(self, graph: Data) -> Tensor:
        """The first column."""
        return super().columns(graph)[:, :1]


class TypeDictEdgeEncoder(CategoricalEncoder):
    """One type per edge: ``edge_attr [E]`` or ``[E, 1]``. ZINC has 4 types, AQSOL 5."""

    def __init__(self, channels: int, num_types: int) -> None:
        super().__init__(channels, (num_types,), "edge_attr")


class LinearNodeEncoder(Encoder):
    """Linear map of numerical features ``x [N, in_channels]``, such as the 14 of superpixels.

    Args:
        channels: Width ``C``.
        in_channels: Number of feature columns.
        dropout: Probability of zeroing a feature, in training. It helps on sparse bags of words.
    """

    requires = ("x",)

    def __init__(self, channels: int, in_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.channels = channels
        self.dropout, self.linear = Dropout(dropout), Linear(in_channels, channels)

    def forward(self, graph: Data) -> Tensor:
        """``[rows, C]``."""
        (table,) = self.read_tables(graph, self.linear.in_features)
        return self.linear(self.dropout(table))


class LinearEdgeEncoder(LinearNodeEncoder):
    """Linear map of numerical features ``edge_attr [E, in_channels]``, or ``[E]`` for one column."""

    requires = ("edge_attr",)


class ConstantNodeEncoder(Encoder):
    """The same learned vector for all nodes, for data without node features, such as ogbg-ppa.

    Args:
        channels: Width ``C``.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.vector = Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        normal_(self.vector)

    counted = "num_nodes"
    """Name of the number of rows."""

    def forward(self, graph: Data) -> Tensor:
        """``[rows, C]``."""
        return self.vector.expand(getattr(graph, self.counted), -1)


class ConstantEdgeEncoder(ConstantNodeEncoder):
    """The same learned vector for all edges, for data without edge features (GraphGPS's ``DummyEdge``)."""

    counted = "num_edges"


class MLPNodeEncoder(Encoder):
    """GraphGym's layers before message passing: linear, batch norm, dropout, activation, rows scaled to length 1.

    Args:
        channels: Width ``C``.
        in_channels: Number of feature columns.
        layers: Number of layers; 0 leaves the rows as they are.
        dropout: Probability of zeroing an entry, in training.
        act: Activation, by PyG's names.
        batch_norm: Whether to use a batch norm, which replaces the bias.
        base: Encoder whose rows ``[N, in_channels]`` are the input; ``x`` if :obj:`None`.

    Raises:
        TypeError: If ``layers`` is not an integer.
        ValueError: If ``layers`` is below 0.
    """

    def __init__(
        self,
        channels: int,
        in_channels: int,
        layers: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        batch_norm: bool = True,
        base: Encoder | None = None,
    ) -> None:
        super().__init__()
        layers = check_integer("layers", layers, 0)
        self.channels, self.base = channels, base
        self.requires = ("x",) if base is None else base.requires
        self.linear: list[Linear] = ModuleList(  # type: ignore[assignment]
            Linear(channels if number else in_channels, channels, bias=not batch_norm) for number in range(layers)
        )
        self.norms = ModuleList(BatchNorm1d(channels) for _ in range(layers * batch_norm))
        self.dropout, self.act = Dropout(dropout), activation_resolver(act)

    def forward(self, graph: Data) -> Tensor:
        """``[N, C]``."""
        x = self.read(graph)[0] if self.base is None else self.base(graph)
        for number, linear in enumerate(self.linear):
            x = linear(x.to(linear.weight.dtype))
            x = apply_norm(self.norms[number], x) if len(self.norms) else x
            x = normalize(self.act(self.dropout(x)), dim=1)
        return x
