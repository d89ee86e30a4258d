"""The base class of encoders, and encoders that combine others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Module, ModuleList
from torch_geometric.data import Data
from torch_geometric.nn import MLP

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.nn.graph_attributes import read_attributes, requirements_of
from pyg_topomask.nn.norm import apply_norm, build_norm
from pyg_topomask.nn.reset import Resettable


class Encoder(Resettable):
    """Maps graph attributes to learned vectors, called as ``encoder(graph) → [rows, channels]``.

    There is one row per node, edge or pair of nodes, as the class says.
    """

    requires: tuple[str, ...] = ()
    """Attributes that the graph must carry."""
    transform_settings: Mapping[str, Any] = {}
    """Settings of the transform that adds them, for the message if they are missing."""
    channels: int
    """Width of the output."""

    def forward(self, graph: Data) -> Tensor:
        """The vectors, ``[rows, channels]``. Raises TypeError and ValueError as `read`."""
        raise NotImplementedError

    def read(self, graph: Any) -> list[Tensor]:
        """The attributes of `requires`, in order.

        Raises:
            TypeError: If ``graph`` is not a homogeneous graph.
            ValueError: If one is missing; the message says what to add.
        """
        return read_attributes(self, graph)

    def read_tables(self, graph: Any, num_columns: int) -> list[Tensor]:
        """The attributes of `requires` as tables ``[rows, num_columns]``; the graph may store one column as ``[rows]``.

        They have the dtype of the encoder's weights, because transforms store float32.

        Raises:
            TypeError: If ``graph`` is not a homogeneous graph.
            ValueError: If an attribute is missing or has another number of columns.
        """
        tables = [table.unsqueeze(1) if table.dim() == 1 else table for table in self.read(graph)]
        for name, table in zip(self.requires, tables):
            if table.dim() != 2 or table.size(1) != num_columns:
                raise ValueError(
                    f"{type(self).__name__} was built for {num_columns} columns in '{name}' "
                    f"(got {list(table.shape)}); give the encoder and the data the same number"
                )
        weight = next(self.parameters(), None)
        return tables if weight is None else [table.to(weight.dtype) for table in tables]


def relu_mlp(in_channels: int, hidden: int, out_channels: int, num_layers: int) -> MLP:
    """Linear layers, each followed by a ReLU, including the last one."""
    widths = [in_channels, *[hidden] * (check_integer("layers", num_layers, 1) - 1), out_channels]
    return MLP(widths, norm=None, plain_last=False)


def raw_norm_layer(name: str | None, width: int) -> Module | None:
    """Norm of the ``width`` columns of raw encodings: ``"batch_norm"``, or none if :obj:`None`. Raises ValueError."""
    check_choice("raw_norm", name, ("batch_norm", None))
    return build_norm(name, width)


class ComposedNodeEncoder(Encoder):
    r"""Concatenates an encoder of node features with any number of positional encodings.

    .. math:: x_i = [\,\mathrm{base}_i + \sum_a \mathrm{added}_{a, i} \;\|\; p_{1, i} \;\|\; p_{2, i} \dots]

    The base gets the width that the encodings leave, as in GraphGPS: Rampášek et al., NeurIPS 2022, arXiv:2205.12454,
    Section 3.1.

    Args:
        channels: Width ``C`` of the result.
        base: Function of a width that returns the encoder of node features; :obj:`None` if encodings fill the width.
        positional: Encoders to concatenate, each with its ``channels``.
        added: Functions of the base's width that return encoders to add to the base (`GraphormerDegrees`).

    Raises:
        ValueError: If the encodings leave no width for the base, or leave some although there is no base.
    """

    def __init__(
        self,
        channels: int,
        base: Callable[[int], Module] | None,
        positional: Sequence[Encoder] = (),
        added: Sequence[Callable[[int], Module]] = (),
    ) -> None:
        super().__init__()
        taken = [part.channels for part in positional]
        width = channels - sum(taken)
        if width < 0 or (width > 0) == (base is None):
            raise ValueError(
                f"encodings of widths {taken} leave {width} of {channels} channels for node features "
                f"({'there are none' if base is None else 'they need at least 1'}); change 'dim_pe' or the width"
            )
        self.channels = channels
        self.base = None if base is None else base(width)
        self.added = ModuleList(part(width) for part in added)
        self.positional = ModuleList(positional)

    @property
    def requires(self) -> tuple[str, ...]:  # type: ignore[override]
        """Attributes that the graph must carry, without repetition."""
        return requirements_of(self.base, *self.added, *self.positional)

    def forward(self, graph: Data) -> Tensor:
        """``[N, C]``."""
        rows = [part(graph) for part in self.positional]
        if self.base is not None:
            x = self.base(graph)
            for part in self.added:
                x = x + part(graph)
            rows.insert(0, x)
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


class NormalizedEncoder(Encoder):
    """An encoder followed by a batch norm (GraphGPS's ``node_encoder_bn`` and ``edge_encoder_bn``).

    Args:
        encoder: The encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.channels, self.requires = encoder, encoder.channels, encoder.requires
        self.norm = BatchNorm1d(encoder.channels)

    def forward(self, graph: Data) -> Tensor:
        """The normalised rows of the encoder."""
        return apply_norm(self.norm, self.encoder(graph))
