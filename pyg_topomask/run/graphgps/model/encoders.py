"""Encoders of nodes, edges and pairs of nodes, and the transforms that compute their encodings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS, ComposedNodeEncoder
from pyg_topomask.nn.encoder.base import Encoder, NormalizedEncoder
from pyg_topomask.nn.encoder.features import LinearNodeEncoder, MLPNodeEncoder
from pyg_topomask.nn.encoder.laplacian import EquivStableLapPE
from pyg_topomask.nn.encoder.pair_bias import GraphormerBias, GraphormerDegrees, RelativeWalkBias
from pyg_topomask.ops.encodings.pair_encodings import NUM_ELECTROSTATIC
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.model.convs import CONVS
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)

EIGEN_NAMES = {"LapPE": "laplacian", "SignNet": "sign_net", "EquivStableLapPE": "stable_laplacian"}
"""Names of the eigenvectors on a graph; each encoding has its own, because their number and norm may differ."""

PLAIN_ENCODERS = ("Constant", "CityNetworkNode")
"""Node encoders that are a linear map; a transform prepares their features."""

_APART = ("EquivStableLapPE", "GraphormerBias", "RRWP")
"""Encodings that are not concatenated to node features."""

_WITH_KERNEL: dict[str, Callable[[Any], BaseTransform]] = {
    "RWSE": AddRandomWalkEncoding,
    "RRWP": AddRelativeWalkEncoding,
    "HKdiagSE": AddHeatDiagonalEncoding,
}
"""Encodings whose transform takes the steps or times of ``posenc_*.kernel``."""


def base_encoders(config: Config) -> list[str]:
    """The parts of ``dataset.node_encoder_name`` that encode node features."""
    return [name for name in config.dataset.node_encoder_parts if name not in POSITIONAL_ENCODERS]


def encodings_of(config: Config) -> list[str]:
    """The parts of ``dataset.node_encoder_name`` that are encodings and are used by the model."""
    named = [name for name in config.dataset.node_encoder_parts if name in POSITIONAL_ENCODERS]
    return [name for name in named if name != "EquivStableLapPE" or uses_stable_gate(config)]


def uses_stable_gate(config: Config) -> bool:
    """Whether a convolution is gated by distances of Laplacian encodings; not all convolutions can be."""
    enabled = "EquivStableLapPE" in config.dataset.node_encoder_parts and config.posenc_EquivStableLapPE.enable
    return enabled and any(CONVS[name].takes_pe for name in config.gt.parts if name in CONVS)


def uses_pair_bias(config: Config) -> bool:
    """Whether attention has a bias for each pair of nodes."""
    names = encodings_of(config)
    given = "RRWP" in names or ("GraphormerBias" in names and not config.posenc_GraphormerBias.node_degrees_only)
    return given and "BiasedTransformer" in config.gt.layer_type.split("+")


def uses_graph_token(config: Config) -> bool:
    """Whether each graph gets an additional node, as in Graphormer and vision transformers."""
    graphormer = "GraphormerBias" in encodings_of(config) and config.graphormer.use_graph_token
    return graphormer or config.model.chooses("graph_pooling", "graph_token")


def _num_path_types(config: Config) -> int | None:
    """Number of edge types along shortest paths; None if edges have no types."""
    data = config.dataset
    typed = data.peek("edge_encoder") and data.peek("edge_encoder_name") == "TypeDictEdge"
    return data.edge_encoder_num_types if typed and data.edge_encoder and data.edge_encoder_name else None


def construct(cls: Callable[..., Any], *positional: Any, **given: Any) -> Any:
    """An object of a class, built with those of the given keyword arguments that its constructor has."""
    known = inspect.signature(cls).parameters
    return cls(*positional, **{name: value for name, value in given.items() if name in known})


def values_for(cls: Callable[..., Any], config: Config, keys: Mapping[str, str]) -> dict[str, Any]:
    """Values of those keys whose argument the constructor of a class has; the others are not read."""
    known = inspect.signature(cls).parameters
    return {argument: config.value(key) for argument, key in keys.items() if argument in known}


def build_node_encoder(config: Config, in_channels: int) -> Module:
    """The encoder of nodes: features and positional encodings, norm, and the layers before message passing."""
    data, gnn, channels = config.dataset, config.gnn, config.gt.dim_hidden
    encoder: Encoder | None = None
    if data.node_encoder:
        encoder = _composed(config, in_channels)
        normed = data.node_encoder_bn
        if config.model.type == "MultiModel" if normed is None else normed:
            encoder = NormalizedEncoder(encoder)
        in_channels = channels
    if encoder is not None and gnn.layers_pre_mp == 0:
        return encoder
    if gnn.layers_pre_mp == 0 and in_channels != channels:
        raise ValueError(
            f"'node_encoder' is false, but node features have {in_channels} columns and layers have {channels} channels"
        )
    if gnn.layers_pre_mp == 0:
        return MLPNodeEncoder(channels, in_channels, 0)
    return MLPNodeEncoder(channels, in_channels, gnn.layers_pre_mp, gnn.dropout, gnn.act, gnn.batchnorm, base=encoder)


def _composed(config: Config, in_channels: int) -> Encoder:
    channels, names = config.gt.dim_hidden, encodings_of(config)
    positional = [_positional(config, name) for name in names if name not in _APART]
    added = []
    if "GraphormerBias" in names:
        bias = config.posenc_GraphormerBias
        degrees = bias.num_in_degrees or 1, bias.num_out_degrees or 1
        added.append(lambda width: GraphormerDegrees(width, *degrees))
    base: Callable[[int], Module] | None = lambda width: _base(config, width, in_channels)  # noqa: E731
    if not base_encoders(config) and sum(part.channels for part in positional) == channels:
        base = None  # the encodings fill all columns
    return ComposedNodeEncoder(channels, base, positional, added)


def _base(config: Config, channels: int, in_channels: int) -> Module:
    """The encoder of node features; a linear map if only encodings are given, as in GraphGPS."""
    name = next(iter(base_encoders(config)), "LinearNode")
    cls = LinearNodeEncoder if name in PLAIN_ENCODERS else NODE_ENCODERS[name]
    keys = {"num_types": "dataset.node_encoder_num_types", "dropout": "topomask.input_dropout"}
    return construct(cls, channels, in_channels=in_channels, **values_for(cls, config, keys))


def _positional(config: Config, name: str) -> Encoder:
    """An encoding that is concatenated to the node features."""
    section: Any = getattr(config, f"posenc_{name}")
    cls, model = POSITIONAL_ENCODERS[name], section.model
    known = {*inspect.signature(cls).parameters, *(["n_heads"] if model == "Transformer" else [])}
    unread = {"raw_norm_type", "eigen", "kernel", *(["layers"] if model.lower() == "linear" else [])}
    given = {key: getattr(section, key) for key in type(section).model_fields if key in known - unread}
    if "n_heads" in given:
        given["heads"] = given.pop("n_heads")
    if section.peek("raw_norm_type") is not None:
        given["raw_norm"] = _raw_norm(section)
    if name in EIGEN_NAMES:
        given |= {"max_freqs": section.eigen.max_freqs, "name": EIGEN_NAMES[name]}
    else:
        given["in_channels"] = NUM_ELECTROSTATIC if name == "ElstaticSE" else len(section.kernel.numbers)
    return construct(POSITIONAL_ENCODERS[name], section.dim_pe, **given)


def _raw_norm(section: Any) -> str | None:
    return "batch_norm" if section.raw_norm_type.lower() == "batchnorm" else None


def build_edge_encoder(config: Config, edge_channels: int | None) -> Module | None:
    """The encoder of edges, or None."""
    data = config.dataset
    if not data.peek("edge_encoder"):
        return None
    if not config.was_read("dataset.edge_encoder"):  # no part of the layers, which are built before, has edge features
        config = config.model_copy(update={"dataset": data.model_copy(deep=True)})
        data = config.dataset
    cls = EDGE_ENCODERS[data.edge_encoder_name]
    given = values_for(cls, config, {"num_types": "dataset.edge_encoder_num_types"})
    encoder = construct(cls, config.gt.dim_hidden, in_channels=edge_channels or 1, **given)
    return NormalizedEncoder(encoder) if data.edge_encoder_bn else encoder


def build_pe_encoder(config: Config) -> Module | None:
    """The encoding that gates messages, or None."""
    if not uses_stable_gate(config):
        return None
    section = config.posenc_EquivStableLapPE
    return EquivStableLapPE(
        config.gt.dim_hidden, section.eigen.max_freqs, _raw_norm(section), name=EIGEN_NAMES["EquivStableLapPE"]
    )


def build_bias_encoder(config: Config) -> Module | None:
    """The bias of pairs of nodes, or None."""
    if not uses_pair_bias(config):
        return None
    if "RRWP" in encodings_of(config):
        return RelativeWalkBias(config.gt.n_heads, len(config.posenc_RRWP.kernel.numbers))
    return GraphormerBias(
        config.gt.n_heads, config.posenc_GraphormerBias.num_spatial_types or 1, _num_path_types(config)
    )


def build_encodings(config: Config) -> list[BaseTransform]:
    """The transforms that compute the encodings of a config."""
    return [_transform(config, name) for name in encodings_of(config)]


def _transform(config: Config, name: str) -> BaseTransform:
    section: Any = getattr(config, f"posenc_{name}")
    if name in EIGEN_NAMES:
        norm = None if section.eigen.laplacian_norm == "none" else section.eigen.laplacian_norm
        return AddLaplacianEncoding(section.eigen.max_freqs, norm, section.eigen.eigvec_norm, EIGEN_NAMES[name])
    if name in _WITH_KERNEL:
        return _WITH_KERNEL[name](section.kernel.numbers)
    if name == "ElstaticSE":
        return AddElectrostaticEncoding()
    paths = uses_pair_bias(config) and _num_path_types(config) is not None
    return AddShortestPathBias(section.num_spatial_types, paths=paths, pairs=uses_pair_bias(config))
