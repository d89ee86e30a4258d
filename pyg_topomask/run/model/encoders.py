"""What goes into the layers: encoders of nodes, edges and pairs, and the transforms that compute their encodings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.nn import Module
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS, ComposedNodeEncoder
from pyg_topomask.nn.encoder import (
    Encoder,
    EquivStableLapPE,
    GraphormerBias,
    GraphormerDegrees,
    LinearNodeEncoder,
    MLPNodeEncoder,
    NormalizedEncoder,
    RelativeWalkBias,
)
from pyg_topomask.run.config import Config
from pyg_topomask.run.model.convs import CONVS
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)

EIGEN_NAMES = {"LapPE": "laplacian", "SignNet": "sign_net", "EquivStableLapPE": "stable_laplacian"}
"""Encoding -> name of its eigenvectors on a graph: each may ask for its own number and norm."""

PLAIN_ENCODERS = ("Constant", "CityNetworkNode")
"""Node encoders that are a linear map of features which a transform has changed before."""

_APART = ("EquivStableLapPE", "GraphormerBias", "RRWP")
"""Encodings that are not concatenated to node features."""

_ARGUMENTS = {
    "model": "model",
    "layers": "layers",
    "n_heads": "heads",
    "post_layers": "post_layers",
    "phi_hidden_dim": "phi_hidden_dim",
    "phi_out_dim": "phi_out_dim",
}
"""Key of a ``posenc_*`` section -> constructor argument of an encoder; one that the class lacks is not passed."""


def base_encoders(config: Config) -> list[str]:
    """Names in ``dataset.node_encoder_name`` that are of node features."""
    return [name for name in config.dataset.node_encoder_parts if name not in POSITIONAL_ENCODERS]


def encodings_of(config: Config) -> list[str]:
    """Names in ``dataset.node_encoder_name`` that are encodings which the model has a use for."""
    named = [name for name in config.dataset.node_encoder_parts if name in POSITIONAL_ENCODERS]
    return [name for name in named if name != "EquivStableLapPE" or uses_stable_gate(config)]


def uses_stable_gate(config: Config) -> bool:
    """Whether a convolution is gated by the distance of Laplacian encodings; GCN, for one, cannot be."""
    enabled = config.posenc_EquivStableLapPE.enable and "EquivStableLapPE" in config.dataset.node_encoder_parts
    return enabled and any(CONVS[name].takes_pe for name in config.gt.parts if name in CONVS)


def uses_pair_bias(config: Config) -> bool:
    """Whether attention has a bias for each pair of nodes."""
    names = encodings_of(config)
    given = "RRWP" in names or ("GraphormerBias" in names and not config.posenc_GraphormerBias.node_degrees_only)
    return given and "BiasedTransformer" in config.gt.layer_type.split("+")


def uses_graph_token(config: Config) -> bool:
    """Whether each graph has one more node, as Graphormer's."""
    return "GraphormerBias" in encodings_of(config) and config.graphormer.use_graph_token


def _num_path_types(config: Config) -> int | None:
    """Edge types along shortest paths, where edges have types."""
    data = config.dataset
    return data.edge_encoder_num_types if data.edge_encoder and data.edge_encoder_name == "TypeDictEdge" else None


def takes(cls: Callable[..., Any], argument: str) -> bool:
    """Whether a class's constructor, or a function, has an argument of that name."""
    return argument in inspect.signature(cls).parameters


def build_node_encoder(config: Config, in_channels: int) -> Module:
    """The encoder of nodes: features beside positional encodings, norm, and layers before message passing."""
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
            f"'node_encoder' is false, but node features have {in_channels} columns and layers {channels} channels"
        )
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
        base = None  # encodings fill the width
    return ComposedNodeEncoder(channels, base, positional, added)


def _base(config: Config, channels: int, in_channels: int) -> Module:
    """The encoder of node features; a linear map where only encodings are named, as in GraphGPS."""
    name, data = next(iter(base_encoders(config)), "LinearNode"), config.dataset
    cls = LinearNodeEncoder if name in PLAIN_ENCODERS else NODE_ENCODERS[name]
    given = {
        "in_channels": in_channels,
        "num_types": data.node_encoder_num_types,
        "dropout": config.topomask.input_dropout,
    }
    return cls(channels, **{key: value for key, value in given.items() if takes(cls, key)})


def _positional(config: Config, name: str) -> Encoder:
    """An encoding that is concatenated to the node features."""
    section: Any = getattr(config, f"posenc_{name}")
    cls = POSITIONAL_ENCODERS[name]
    given = {
        argument: getattr(section, key) for key, argument in _ARGUMENTS.items() if key in type(section).model_fields
    }
    given["raw_norm"] = _raw_norm(section)
    if name in EIGEN_NAMES:
        given |= {"max_freqs": section.eigen.max_freqs, "name": EIGEN_NAMES[name]}
    elif name != "ElstaticSE":  # it has as many columns as its transform writes
        given["in_channels"] = len(section.kernel.numbers)
    return cls(section.dim_pe, **{key: value for key, value in given.items() if takes(cls, key)})


def _raw_norm(section: Any) -> str | None:
    return "batch_norm" if section.raw_norm_type.lower() == "batchnorm" else None


def build_edge_encoder(config: Config, edge_channels: int | None) -> Module | None:
    """The encoder of edges, or none."""
    data = config.dataset
    if not data.edge_encoder:
        return None
    cls = EDGE_ENCODERS[data.edge_encoder_name]
    given = {"in_channels": edge_channels or 1, "num_types": data.edge_encoder_num_types}
    encoder = cls(config.gt.dim_hidden, **{key: value for key, value in given.items() if takes(cls, key)})
    return NormalizedEncoder(encoder) if data.edge_encoder_bn else encoder


def build_pe_encoder(config: Config) -> Module | None:
    """The encoding that gates messages, or none."""
    if not uses_stable_gate(config):
        return None
    section = config.posenc_EquivStableLapPE
    return EquivStableLapPE(
        config.gt.dim_hidden, section.eigen.max_freqs, _raw_norm(section), name=EIGEN_NAMES["EquivStableLapPE"]
    )


def build_bias_encoder(config: Config) -> Module | None:
    """The bias of pairs of nodes, or none."""
    if not uses_pair_bias(config):
        return None
    if "RRWP" in encodings_of(config):
        return RelativeWalkBias(config.gt.n_heads, len(config.posenc_RRWP.kernel.numbers))
    return GraphormerBias(
        config.gt.n_heads, config.posenc_GraphormerBias.num_spatial_types or 1, _num_path_types(config)
    )


def build_encodings(config: Config) -> list[BaseTransform]:
    """The transforms that compute what the encoders of a config read."""
    return [_transform(config, name) for name in encodings_of(config)]


def _transform(config: Config, name: str) -> BaseTransform:
    section: Any = getattr(config, f"posenc_{name}")
    if name in EIGEN_NAMES:
        norm = None if section.eigen.laplacian_norm == "none" else section.eigen.laplacian_norm
        return AddLaplacianEncoding(section.eigen.max_freqs, norm, section.eigen.eigvec_norm, EIGEN_NAMES[name])
    if name == "RWSE":
        return AddRandomWalkEncoding(section.kernel.numbers)
    if name == "RRWP":
        return AddRelativeWalkEncoding(section.kernel.numbers)
    if name == "HKdiagSE":
        return AddHeatDiagonalEncoding(section.kernel.numbers)
    if name == "ElstaticSE":
        return AddElectrostaticEncoding()
    paths = _num_path_types(config) is not None and uses_pair_bias(config)
    return AddShortestPathBias(section.num_spatial_types, paths=paths, pairs=uses_pair_bias(config))
