"""Node and edge features in the form that the model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddSelfLoops, BaseTransform, Compose, Constant, NormalizeFeatures, ToUndirected

from pyg_topomask.run.data.features import FittedTransform, Standardize
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.formats import is_one_graph

CATEGORICAL = ("Atom", "ASTNode", "PPANode", "TypeDictNode")
"""Node encoders that take integer categories; all others take floats."""

CATEGORICAL_EDGES = ("Bond", "ASTEdge", "TypeDictEdge")
"""Edge encoders that take integer categories."""


def input_features(config: Config) -> BaseTransform:
    """The transform that puts node and edge features into the form that the model takes."""
    data = config.dataset
    reduce = "max" if data.peek("edge_encoder_name") in CATEGORICAL_EDGES else "mean"
    steps: list[Callable[[Data], Data]] = [ToUndirected(reduce=reduce)] if data.to_undirected else []
    steps.append(partial(_with_node_features, encoders=data.node_encoder_parts))
    if is_one_graph(data) and config.prep.add_self_loops:
        steps.append(AddSelfLoops(attr="edge_weight"))
    if config.topomask.normalize_features:
        steps.append(NormalizeFeatures())
    encoder = data.peek("edge_encoder_name") if data.peek("edge_encoder") else None  # what takes edges reads these keys
    steps.append(partial(_with_edge_features, encoder=encoder))
    return Compose(steps)


def _with_node_features(data: Data, encoders: Sequence[str]) -> Data:
    """Make features floats, except categories; nodes without features get a 1."""
    if "Constant" in encoders or data.x is None:
        return Constant(cat=False)(data)
    categorical = next((encoder for encoder in encoders if encoder in CATEGORICAL), None)
    if categorical is None:
        data.x = _real_rows("x", data.x, int(data.num_nodes or 0))
    elif data.x.is_floating_point():
        message = f"{categorical} takes integer categories (got {data.x.dtype}); use LinearNode"
        raise RunError(f"dataset.node_encoder_name: {message}")
    return data


def _with_edge_features(data: Data, encoder: str | None) -> Data:
    """Put edge features into the form that the encoder takes; remove them if there is no encoder."""
    if encoder is None:
        data.edge_attr = None
    elif encoder == "DummyEdge":
        data.edge_attr = torch.ones(1, 1).expand(data.num_edges, 1)
    elif data.edge_attr is None:
        raise RunError("dataset.edge_encoder_name: the data have no edge features; use DummyEdge")
    elif encoder in ("LinearEdge", "VOCEdge", "COCOEdge"):
        data.edge_attr = _real_rows("edge_attr", data.edge_attr, data.num_edges)
    return data


def _real_rows(name: str, features: Tensor, count: int) -> Tensor:
    """Features as floats, one row for each of ``count`` nodes or edges."""
    if features.dim() == 0 or features.size(0) != count:
        kind = "nodes" if name == "x" else "edges"
        raise RunError(f"'{name}' must have a row for each of the {count} {kind} (got shape {list(features.shape)})")
    features = (features if features.layout == torch.strided else features.to_dense()).float()
    return features[:, None] if features.dim() == 1 else features.flatten(1)


def fitted_features(config: Config) -> list[type[FittedTransform]]:
    """Classes of transforms that are fitted to the training graphs and applied to the features of all graphs."""
    steps: list[type[FittedTransform]] = [Standardize] if config.dataset.normalize else []
    return [*steps, Coordinates] if "CityNetworkNode" in config.dataset.node_encoder_parts else steps


class Coordinates(FittedTransform):
    r"""Replaces longitude and latitude by sines and cosines, and standardises all other node features.

    A value v in each of the first two columns becomes :math:`\sin 2^i u` and :math:`\cos 2^i u`,
    :math:`i = 0, \ldots, 7`, with :math:`u = 0.9 \cdot 2 \pi (v - v_{\min}) / (v_{\max} - v_{\min}) - 0.9 \pi`. The
    minimum and maximum are those of the training nodes; the factor 0.9 leaves room for nodes beyond them. This is the
    encoding of City-Networks by k-MIP's authors. Training graphs have ``x`` of ``[N, d]``.
    """

    frequencies = 2.0 ** torch.arange(8)

    @classmethod
    def fit(cls, graphs: Sequence[Data]) -> Coordinates:
        coordinates = torch.cat([graph.x[:, :2] for graph in graphs])
        low = coordinates.min(0).values
        extent = (coordinates.max(0).values - low).clamp(min=1e-6)
        others = Standardize.fit([Data(x=graph.x[:, 2:]) for graph in graphs])
        return cls({"low": low, "extent": extent, "others": others.constants})

    def forward(self, data: Data) -> Data:
        low, extent, others = (self.constants[name] for name in ("low", "extent", "others"))
        angle = 0.9 * 2 * torch.pi * ((data.x[:, :2] - low) / extent - 0.5)
        angle = angle.unsqueeze(-1) * self.frequencies
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(1)
        data.x = torch.cat([waves, Standardize(others)(Data(x=data.x[:, 2:])).x], dim=1)
        return data
