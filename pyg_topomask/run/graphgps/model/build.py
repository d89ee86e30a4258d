"""Build the model of a config: its keys are translated once, here, into constructor arguments."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch.nn import Module

from pyg_topomask.nn import HEADS, GPSNetwork, GPSStack
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.norm import build_norm
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.base import noting_reads
from pyg_topomask.run.graphgps.config.schema import contradictions
from pyg_topomask.run.graphgps.model import encoders
from pyg_topomask.run.graphgps.model.attentions import attentions_of, build_attention
from pyg_topomask.run.graphgps.model.convs import CONVS
from pyg_topomask.run.training.scaled import Scaled

_GRAPHGYM_HEADS = ("graph", "node", "inductive_node", "edge", "inductive_edge")
"""Heads whose MLP is GraphGym's, with ReLU and without dropout for any value of ``gnn.act`` and ``gnn.dropout``."""


MIN_WIDTH, MAX_WIDTH = 32, 512
"""Range of widths that k-MIP's authors search."""

WIDTH_KEYS = ("gt.dim_hidden", "gt.dim_edge", "gt.sparse.val_dim", "gnn.dim_inner")
"""Keys that are set to the width that was found."""


def convs_of(config: Config) -> list[str]:
    """Names of the convolutions in ``gt.layer_type``."""
    return [name for name in config.gt.parts if name in CONVS]


def build_conv(config: Config, name: str, layer: int = 0) -> Module:
    """The convolution of that name, for one layer."""
    entry, gt, alone = CONVS[name], config.gt, config.model.type == "custom_gnn"
    takes_edges = entry.takes_edges and not (alone and name == "GAT")  # as in GraphGPS
    return entry.build(
        num_types=config.dataset.edge_encoder_num_types if entry.takes_types else 0,
        channels=gt.dim_hidden,
        heads=gt.n_heads,
        act=config.gnn.act,
        dropout=gt.dropout,
        edge_dim=gt.dim_hidden if takes_edges and config.dataset.edge_encoder else None,
        stable=entry.takes_pe and encoders.uses_stable_gate(config),
        last=layer == gt.layers - 1,
        alone=alone,
    )


def build_stack(config: Config) -> GPSStack:
    """The layers that ``gt`` describes."""
    gt, convs, attentions = config.gt, convs_of(config), attentions_of(config)
    return GPSStack(
        gt.dim_hidden,
        gt.layers,
        conv=lambda layer: [build_conv(config, name, layer) for name in convs],
        attn=lambda layer: [build_attention(config, name, layer) for name in attentions],
        norm=_norm(config),
        dropout=gt.dropout,
        act=config.gnn.act,
        feed_forward=config.topomask.feed_forward and config.model.type != "SingleModel",
        checkpoint=config.share.gradient_checkpointing,
        pre_norm=config.topomask.pre_norm,
    )


def searches_width(config: Config) -> bool:
    """Whether the width is found by ``model.param_budget``.

    As in the authors' code, it is not for a MultiModel. It is not if the model starts from the weights of a finished
    run, either.
    """
    return (
        config.model.auto_satisfy_param_budget
        and config.model.type in ("GPSModel", "custom_gnn")
        and not config.pretrained.dir
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
    if not searches_width(config):
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
) -> GPSNetwork:
    """The model of a config for data of the given sizes.

    Args:
        config: The config.
        in_channels: Number of columns of ``x``.
        out_channels: Width of a prediction.
        edge_channels: Number of columns of ``edge_attr``; None without edge features.
        level: What has a target, ``"graph"``, ``"node"`` or ``"edge"``, for the default head. ``dataset.task`` if
            :obj:`None`; GraphGPS's files set that to ``graph`` for some node tasks.

    Raises:
        ValueError: If sizes do not fit each other.
    """
    gt = config.gt
    heads = gt.n_heads if encoders.uses_pair_bias(config) else None
    return GPSNetwork(
        encoders.build_node_encoder(config, in_channels),
        build_stack(config),
        build_head(config, out_channels, level or config.dataset.task),
        edge_encoder=encoders.build_edge_encoder(config, edge_channels),
        pe_encoder=encoders.build_pe_encoder(config),
        bias_encoder=encoders.build_bias_encoder(config),
        dropout=config.topomask.encoder_dropout,
        graph_token=GraphToken(gt.dim_hidden, heads) if encoders.uses_graph_token(config) else None,
        pool_token=config.model.chooses("graph_pooling", "graph_token"),
        norm_out=build_norm(_norm(config), gt.dim_hidden) if config.topomask.pre_norm else None,
    )


def _norm(config: Config) -> str | None:
    if config.gt.layer_norm:
        if config.model.type in ("MultiModel", "SingleModel"):
            return "graph_norm"
        return "node_layer_norm" if config.topomask.layer_norm_mode == "node" else "layer_norm"
    return "batch_norm" if config.gt.batch_norm else None


def build_head(config: Config, out_channels: int, level: str) -> Module:
    """The head that ``gnn.head`` gives; the default is that of the level."""
    level = "edge" if level == "link_pred" else level
    name = level if config.gnn.head == "default" else config.gnn.head
    keys = {"layers": "gnn.layers_post_mp", "decoding": "model.edge_decoding", "pool": "model.graph_pooling"}
    keys |= {} if name in _GRAPHGYM_HEADS else {"dropout": "gnn.dropout", "act": "gnn.act"}
    given = encoders.values_for(HEADS[name], config, keys)
    if "pool" in given:
        given["pool"] = {"sum": "add", "graph_token": "mean"}.get(given["pool"], given["pool"])
    head = HEADS[name](config.gt.dim_hidden, out_channels, **given)
    return Scaled(head, out_channels) if config.dataset.normalize_targets else head
