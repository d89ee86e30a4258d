"""Translate a config, once, into flat constructor arguments: model, walks, expander edges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Module

from pyg_topomask.nn import HEADS, GPSNetwork, GPSStack
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.run.config import Config
from pyg_topomask.run.model.attentions import attentions_of, build_attention
from pyg_topomask.run.model.budget import searches_width, within_budget
from pyg_topomask.run.model.convs import CONVS, ConvSettings
from pyg_topomask.run.model.encoders import (
    build_bias_encoder,
    build_edge_encoder,
    build_node_encoder,
    build_pe_encoder,
    uses_graph_token,
    uses_stable_gate,
)

MODEL_KEYS = (
    "topomask.feed_forward",
    "topomask.normalize_features",
    "topomask.input_dropout",
    "topomask.encoder_dropout",
)
"""Keys of ``topomask`` that any model has a use for."""


def convs_of(config: Config) -> list[str]:
    """Names of the convolutions in ``gt.layer_type``."""
    return [name for name in config.gt.parts if name in CONVS]


def arguments_of(cls: type[Module]) -> Mapping[str, inspect.Parameter]:
    """Arguments of a class's constructor."""
    return inspect.signature(cls.__init__).parameters


def build_conv(config: Config, name: str, layer: int = 0) -> Module:
    """The convolution of that name, for one layer."""
    entry, gt = CONVS[name], config.gt
    edges = entry.takes_edges and config.dataset.edge_encoder
    stable = entry.takes_pe and uses_stable_gate(config)
    last, alone = layer == gt.layers - 1, config.model.type == "custom_gnn"
    return entry.build(ConvSettings(gt.dim_hidden, gt.n_heads, config.gnn.act, gt.dropout, edges, stable, last, alone))


def build_stack(config: Config) -> GPSStack:
    """The layers that ``gt`` names."""
    gt, convs, attentions = config.gt, convs_of(config), attentions_of(config)
    return GPSStack(
        gt.dim_hidden,
        gt.layers,
        conv=_branches(lambda name, layer: build_conv(config, name, layer), convs),
        attn=_branches(lambda name, layer: build_attention(config, name, layer), attentions),
        norm=_norm(config),
        dropout=gt.dropout,
        act=config.gnn.act,
        feed_forward=config.topomask.feed_forward and config.model.type != "SingleModel",
        checkpoint=config.share.gradient_checkpointing,
    )


def sized(
    config: Config,
    in_channels: int,
    out_channels: int,
    edge_channels: int | None = None,
    level: str | None = None,
) -> Config:
    """The config at the width that ``model.auto_satisfy_param_budget`` asks for; as it is where that is off.

    Takes what :func:`build_model` takes.

    Raises:
        ConfigError: If no width is within the budget.
    """
    if not searches_width(config):
        return config

    def count(candidate: Config) -> int:
        model = build_model(candidate, in_channels, out_channels, edge_channels, level)
        return sum(parameter.numel() for parameter in model.parameters())

    with torch.random.fork_rng(devices=[]):  # looking must not change what is drawn later
        return within_budget(config, count)


def build_model(
    config: Config,
    in_channels: int,
    out_channels: int,
    edge_channels: int | None = None,
    level: str | None = None,
) -> GPSNetwork:
    """The model, for data with so many features, outputs and edge features.

    Args:
        config: The config.
        in_channels: Columns of ``x``.
        out_channels: Width of a prediction.
        edge_channels: Columns of ``edge_attr``, where there are some.
        level: What has a target, ``"graph"``, ``"node"`` or ``"edge"``, for the default head; by ``dataset.task`` if
            :obj:`None`, which GraphGPS's own files give as ``graph`` for some node tasks.

    Raises:
        ValueError: If sizes do not fit each other.
    """
    gt = config.gt
    return GPSNetwork(
        build_node_encoder(config, in_channels),
        build_stack(config),
        build_head(config, out_channels, level or config.dataset.task),
        edge_encoder=build_edge_encoder(config, edge_channels),
        pe_encoder=build_pe_encoder(config),
        bias_encoder=build_bias_encoder(config),
        dropout=config.topomask.encoder_dropout,
        graph_token=GraphToken(gt.dim_hidden, gt.n_heads) if uses_graph_token(config) else None,
        pool_token=config.model.graph_pooling == "graph_token",
    )


def _norm(config: Config) -> str | None:
    if config.gt.layer_norm:
        return "graph_norm" if config.model.type in ("MultiModel", "SingleModel") else "layer_norm"
    return "batch_norm" if config.gt.batch_norm else None


def build_head(config: Config, out_channels: int, level: str) -> Module:
    """The head that ``gnn.head`` names; the default is that of the level.

    The MLPs of GraphGym's heads know neither dropout nor another activation than ReLU, whatever ``gnn`` says.
    """
    level = "edge" if level == "link_pred" else level
    name = level if config.gnn.head == "default" else config.gnn.head
    cls, pool = HEADS[name], config.model.graph_pooling
    given: dict[str, Any] = {"layers": config.gnn.layers_post_mp, "decoding": config.model.edge_decoding}
    given["pool"] = {"sum": "add", "graph_token": "mean"}.get(pool, pool)  # a token is pooled alone
    if "l2_norm" not in arguments_of(cls):
        given |= {"dropout": config.gnn.dropout, "act": config.gnn.act}
    return cls(config.gt.dim_hidden, out_channels, **{key: x for key, x in given.items() if key in arguments_of(cls)})


def _branches(build: Callable[[str, int], Module], names: list[str]) -> Callable[[int], list[Module]] | None:
    """A function of the layer's number that builds its branches of one kind."""
    return (lambda layer: [build(name, layer) for name in names]) if names else None
