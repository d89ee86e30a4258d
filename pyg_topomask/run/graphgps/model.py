"""Build the model of a config: its keys are translated once, here, into constructor arguments."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch.nn import Module
from torch_geometric.transforms import BaseTransform

from pyg_topomask import nn, transforms
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.attentions import build_attention
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.base import noting_reads
from pyg_topomask.run.graphgps.config.schema import contradictions
from pyg_topomask.run.graphgps.convs import CONVS
from pyg_topomask.run.training.scaled import Scaled

EIGEN_NAMES = {"LapPE": "laplacian", "SignNet": "sign_net", "EquivStableLapPE": "stable_laplacian"}
"""Names of the eigenvectors on a graph; each encoding has its own, because their number and norm may differ."""

PLAIN_ENCODERS = ("Constant", "CityNetworkNode")
"""Node encoders that are a linear map; a transform prepares their features."""

_APART = ("EquivStableLapPE", "GraphormerBias", "RRWP")
"""Encodings that are not concatenated to node features."""

_WITH_KERNEL: dict[str, Callable[[Any], BaseTransform]] = {
    "RWSE": transforms.AddRandomWalkEncoding,
    "RRWP": transforms.AddRelativeWalkEncoding,
    "HKdiagSE": transforms.AddHeatDiagonalEncoding,
}
"""Encodings whose transform takes the steps or times of ``posenc_*.kernel``."""


def _num_path_types(config: Config) -> int | None:
    """Number of edge types along shortest paths; None if edges have no types."""
    data = config.dataset
    typed = data.peek("edge_encoder") and data.peek("edge_encoder_name") == "TypeDictEdge"
    return data.edge_encoder_num_types if typed and data.edge_encoder and data.edge_encoder_name else None


def construct(cls: Callable[..., Any], *positional: Any, **given: Any) -> Any:
    """An object of a class, built with those of the given keyword arguments that its constructor has."""
    return cls(*positional, **{name: value for name, value in given.items() if name in signature(cls).parameters})


def values_for(cls: Callable[..., Any], config: Config, keys: Mapping[str, str]) -> dict[str, Any]:
    """Values of those keys whose argument the constructor of a class has; the others are not read."""
    return {argument: config.value(key) for argument, key in keys.items() if argument in signature(cls).parameters}


def build_node_encoder(config: Config, in_channels: int) -> Module:
    """The encoder of nodes: features and positional encodings, norm, and the layers before message passing."""
    data, gnn, channels, encoder = config.dataset, config.gnn, config.gt.dim_hidden, None
    if data.node_encoder:
        encoder, normed = _composed(config, in_channels), data.node_encoder_bn
        if config.model.type == "MultiModel" if normed is None else normed:
            encoder = nn.NormalizedEncoder(encoder)
        in_channels = channels
    if gnn.layers_pre_mp > 0:
        settings = gnn.layers_pre_mp, gnn.dropout, gnn.act, gnn.batchnorm
        return nn.MLPNodeEncoder(channels, in_channels, *settings, base=encoder)
    if in_channels != channels:
        found = f"node features have {in_channels} columns and layers have {channels} channels"
        raise ValueError(f"'node_encoder' is false, but {found}")
    return nn.MLPNodeEncoder(channels, in_channels, 0) if encoder is None else encoder


def _composed(config: Config, in_channels: int) -> nn.Encoder:
    channels, names, bias = config.gt.dim_hidden, config.used_encodings, config.posenc_GraphormerBias
    positional = [_positional(config, name) for name in names if name not in _APART]
    added = []
    if "GraphormerBias" in names:
        degrees = bias.num_in_degrees or 1, bias.num_out_degrees or 1
        added.append(lambda width: nn.GraphormerDegrees(width, *degrees))
    base: Callable[[int], Module] | None = lambda width: _base(config, width, in_channels)  # noqa: E731
    if not config.dataset.base_encoders and sum(part.channels for part in positional) == channels:
        base = None  # the encodings fill all columns
    return nn.ComposedNodeEncoder(channels, base, positional, added)


def _base(config: Config, channels: int, in_channels: int) -> Module:
    """The encoder of node features; a linear map if only encodings are given, as in GraphGPS."""
    name = next(iter(config.dataset.base_encoders), "LinearNode")
    cls = nn.NODE_ENCODERS["LinearNode" if name in PLAIN_ENCODERS else name]
    keys = {"num_types": "dataset.node_encoder_num_types", "dropout": "topomask.input_dropout"}
    return construct(cls, channels, in_channels=in_channels, **values_for(cls, config, keys))


def _positional(config: Config, name: str, channels: int | None = None) -> nn.Encoder:
    """An encoding of nodes; by default, it fills the columns of the node embedding that the config gives it."""
    section: Any = getattr(config, f"posenc_{name}")
    cls, model = nn.POSITIONAL_ENCODERS[name], getattr(section, "model", "none")
    known = {*signature(cls).parameters, *(["n_heads"] if model == "Transformer" else [])}
    unread = {"raw_norm_type", "eigen", "kernel", *(["layers"] if model.lower() == "linear" else [])}
    given = {key: getattr(section, key) for key in type(section).model_fields if key in known - unread}
    if "n_heads" in given:
        given["heads"] = given.pop("n_heads")
    if section.peek("raw_norm_type") is not None:
        given["raw_norm"] = "batch_norm" if section.raw_norm_type.lower() == "batchnorm" else None
    if name in EIGEN_NAMES:
        given |= {"max_freqs": section.eigen.max_freqs, "name": EIGEN_NAMES[name]}
    else:
        given["in_channels"] = (
            transforms.AddElectrostaticEncoding.num_columns if name == "ElstaticSE" else len(section.kernel.numbers)
        )
    return construct(cls, channels or section.dim_pe, **given)


def build_edge_encoder(config: Config, edge_channels: int | None) -> Module | None:
    """The encoder of edges, or None."""
    data = config.dataset
    if not data.peek("edge_encoder"):
        return None
    if not config.was_read("dataset.edge_encoder"):  # no part of the layers, which are built before, has edge features
        data = data.model_copy(deep=True)
        config = config.model_copy(update={"dataset": data})
    cls = nn.EDGE_ENCODERS[data.edge_encoder_name]
    given = values_for(cls, config, {"num_types": "dataset.edge_encoder_num_types"})
    encoder = construct(cls, config.gt.dim_hidden, in_channels=edge_channels or 1, **given)
    return nn.NormalizedEncoder(encoder) if data.edge_encoder_bn else encoder


def build_bias_encoder(config: Config) -> Module | None:
    """The bias of pairs of nodes, or None."""
    if not config.has_pair_bias:
        return None
    if "RRWP" in config.used_encodings:
        return nn.POSITIONAL_ENCODERS["RRWP"](config.gt.n_heads, len(config.posenc_RRWP.kernel.numbers))
    spatial = config.posenc_GraphormerBias.num_spatial_types or 1
    return nn.POSITIONAL_ENCODERS["GraphormerBias"](config.gt.n_heads, spatial, _num_path_types(config))


def build_encoding(config: Config, name: str) -> BaseTransform:
    """The transform that computes an encoding."""
    section: Any = getattr(config, f"posenc_{name}")
    if name in EIGEN_NAMES:
        eigen = section.eigen
        norm = None if eigen.laplacian_norm == "none" else eigen.laplacian_norm
        return transforms.AddLaplacianEncoding(eigen.max_freqs, norm, eigen.eigvec_norm, EIGEN_NAMES[name])
    if name in _WITH_KERNEL:
        return _WITH_KERNEL[name](section.kernel.numbers)
    if name == "ElstaticSE":
        return transforms.AddElectrostaticEncoding()
    paths = config.has_pair_bias and _num_path_types(config) is not None
    return transforms.AddShortestPathBias(section.num_spatial_types, paths=paths, pairs=config.has_pair_bias)


_GRAPHGYM_HEADS = ("graph", "node", "inductive_node", "edge", "inductive_edge")
"""Heads whose MLP is GraphGym's, with ReLU and without dropout for any value of ``gnn.act`` and ``gnn.dropout``."""


MIN_WIDTH, MAX_WIDTH = 32, 512
"""Range of widths that k-MIP's authors search."""

WIDTH_KEYS = ("gt.dim_hidden", "gt.dim_edge", "gt.sparse.val_dim", "gnn.dim_inner")
"""Keys that are set to the width that was found."""


def build_conv(config: Config, name: str, layer: int = 0) -> Module:
    """The convolution of that name, for one layer."""
    entry, gt, alone = CONVS[name], config.gt, config.model.type == "custom_gnn"
    takes_edges = entry.takes_edges and not (alone and name == "GAT")  # as in GraphGPS
    return entry.build(
        num_types=config.dataset.edge_encoder_num_types if entry.takes_types else 0,
        channels=gt.dim_hidden,
        heads=gt.n_heads,
        act=lambda: config.gnn.act,
        dropout=gt.dropout,
        edge_dim=gt.dim_hidden if takes_edges and config.dataset.edge_encoder else None,
        stable=entry.takes_pe and config.has_stable_gate,
        last=layer == gt.layers - 1,
        alone=alone,
    )


def build_stack(config: Config) -> nn.GPSStack:
    """The layers that ``gt`` describes."""
    gt, convs, attentions = config.gt, config.gt.convs, config.gt.attentions
    feed_forward = config.topomask.feed_forward and config.model.type != "SingleModel"
    return nn.GPSStack(
        gt.dim_hidden,
        gt.layers,
        conv=lambda layer: [build_conv(config, name, layer) for name in convs],
        attn=lambda layer: [build_attention(config, name, layer) for name in attentions],
        norm=_norm(config),
        dropout=gt.dropout,
        act=config.gnn.act if feed_forward else "relu",
        feed_forward=feed_forward,
        checkpoint=config.share.gradient_checkpointing,
        pre_norm=config.topomask.pre_norm,
    )


def with_width(config: Config, width: int) -> Config:
    """The config with layers of that width, and with the same width for all keys that must equal it."""
    gt: dict[str, Any] = {"dim_hidden": width}
    if config.gt.dim_edge is not None:
        gt["dim_edge"] = width
    if "KMIP" in config.gt.parts and config.gt.sparse.val_dim is not None:
        gt["sparse"] = config.gt.sparse.model_copy(update={"val_dim": width // config.gt.n_heads})
    gnn = {} if config.gnn.dim_inner is None else {"dim_inner": width}
    return config.model_copy(update={"gt": config.gt.model_copy(update=gt), "gnn": config.gnn.model_copy(update=gnn)})


def sized(config: Config, *sizes: Any) -> Config:
    """The config with the largest width, a multiple of the heads, whose model is within ``model.param_budget``.

    It is the config itself if ``model.auto_satisfy_param_budget`` is off. The arguments are those of
    :func:`build_model`, in its order.

    Raises:
        ConfigError: If no width is within the budget.
    """
    if not config.searches_width:
        return config

    def count(candidate: Config) -> int:
        return sum(parameter.numel() for parameter in build_model(candidate, *sizes).parameters())

    heads, budget = config.gt.n_heads, config.model.param_budget
    first = -(-MIN_WIDTH // heads) * heads
    candidates = (with_width(config, width) for width in range(first, MAX_WIDTH + heads, heads))
    with noting_reads(False):
        allowed = [candidate for candidate in candidates if not contradictions(candidate)]
    with torch.random.fork_rng(devices=[]):  # the search must not change later random draws
        fitting = bisect_right(allowed, budget, key=count)
        if fitting == 0:
            least = f"; the narrowest one has {count(allowed[0])}" if allowed else ""
            raise ConfigError(f"model.param_budget: no model has so few parameters (got {budget}){least}")
    return allowed[fitting - 1]


def build_model(
    config: Config, in_channels: int, out_channels: int, edge_channels: int | None = None, level: str | None = None
) -> nn.GPSNetwork:
    """The model of a config for data of the given sizes.

    Args:
        config: The config.
        in_channels: Number of columns of ``x``.
        out_channels: Width of a prediction.
        edge_channels: Number of columns of ``edge_attr``; None without edge features.
        level: What has a target, ``"graph"``, ``"node"`` or ``"edge"``, for the default head; as far as the config
            tells it if :obj:`None`.

    Raises:
        ValueError: If sizes do not fit each other.
    """
    gt = config.gt
    heads = gt.n_heads if config.has_pair_bias else None
    graphormer = "GraphormerBias" in config.used_encodings and config.graphormer.use_graph_token
    pool_token = config.model.chooses("graph_pooling", "graph_token")
    return nn.GPSNetwork(
        build_node_encoder(config, in_channels),
        build_stack(config),
        build_head(config, out_channels, level or config.dataset.level),
        edge_encoder=build_edge_encoder(config, edge_channels),
        pe_encoder=_positional(config, "EquivStableLapPE", gt.dim_hidden) if config.has_stable_gate else None,
        bias_encoder=build_bias_encoder(config),
        dropout=config.topomask.encoder_dropout,
        graph_token=nn.GraphToken(gt.dim_hidden, heads) if graphormer or pool_token else None,
        pool_token=pool_token,
        norm_out=nn.build_norm(_norm(config), gt.dim_hidden) if config.topomask.pre_norm else None,
    )


def _norm(config: Config) -> str | None:
    if config.gt.layer_norm:
        if config.model.type in ("MultiModel", "SingleModel"):
            return "graph_norm"
        return "node_layer_norm" if config.topomask.layer_norm_mode == "node" else "layer_norm"
    return "batch_norm" if config.gt.batch_norm else None


def build_head(config: Config, out_channels: int, level: str) -> Module:
    """The head that ``gnn.head`` gives; the default is that of the level."""
    name = level if config.gnn.head == "default" else config.gnn.head
    keys = {"layers": "gnn.layers_post_mp", "decoding": "model.edge_decoding", "pool": "model.graph_pooling"}
    keys |= {} if name in _GRAPHGYM_HEADS else {"dropout": "gnn.dropout", "act": "gnn.act"}
    given = values_for(nn.HEADS[name], config, keys)
    if "pool" in given:
        given["pool"] = {"sum": "add", "graph_token": "mean"}.get(given["pool"], given["pool"])
    head = nn.HEADS[name](config.gt.dim_hidden, out_channels, **given)
    return Scaled(head, out_channels) if config.dataset.normalize_targets else head
