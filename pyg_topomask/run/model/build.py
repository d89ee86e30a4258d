"""Translate a config, once, into flat constructor arguments: model, walks, expander edges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Module
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import ATTENTION, HEADS, GPSNetwork, GPSStack
from pyg_topomask.nn.gps_network import BIAS
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.run.config import Config
from pyg_topomask.run.model.budget import searches_width, within_budget
from pyg_topomask.run.model.convs import CONVS, ConvSettings
from pyg_topomask.run.model.encoders import (
    build_bias_encoder,
    build_edge_encoder,
    build_node_encoder,
    build_pe_encoder,
    uses_graph_token,
    uses_pair_bias,
    uses_stable_gate,
)
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

ATTENTION_KEYS = {
    "gt.sparse.k": "k",
    "gt.sparse.kq_dim": "kq_dim",
    "gt.sparse.val_dim": "val_dim",
    "gt.sparse.head_agg": "head_agg",
    "gt.bigbird.block_size": "block_size",
    "gt.bigbird.num_random_blocks": "num_random",
    "gt.full_graph": "full_graph",
    "gt.gamma": "gamma",
    "gt.n_heads": "heads",
    "gt.attn_dropout": "dropout",
    "topomask.kernel": "kernel",
    "topomask.num_features": "num_features",
    "topomask.path": "path",
    "topomask.max_length": "max_length",
    "topomask.symmetric": "symmetric",
    "topomask.independent": "independent",
    "topomask.decay": "decay",
    "topomask.alpha": "alpha",
    "topomask.learnable": "learnable",
    "topomask.num_virtual": "num_virtual",
    "topomask.rank": "rank",
}
"""Config key -> constructor argument of an attention; one that the class lacks is not passed."""

OWN_KEYS = {"Exphormer": {"prep.num_virt_node": "num_virtual", "prep.add_edge_index": "graph_edges"}}
"""The same for one attention, whose arguments these keys alone give."""

WALK_KEYS = ("num_walks", "max_length", "halt_prob", "scheme", "independent", "pair_table")
"""Keys of ``topomask`` that are arguments of :class:`~pyg_topomask.transforms.AddRandomWalks`."""

TRANSITION = "walk_transition"
"""Edge attribute that walks step in proportion to, in dynamic GKAT."""

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


def attentions_of(config: Config) -> list[str]:
    """Names of the attentions in ``gt.layer_type``, in our spelling."""
    return [name for name in config.gt.parts if name in ATTENTION]


def arguments_of(cls: type[Module]) -> Mapping[str, inspect.Parameter]:
    """Arguments of a class's constructor."""
    return inspect.signature(cls.__init__).parameters


def argument_keys(name: str) -> dict[str, str]:
    """Constructor argument -> config key, for those that the attention has."""
    table = {argument: key for key, argument in ATTENTION_KEYS.items()}
    table |= {argument: key for key, argument in OWN_KEYS.get(name, {}).items()}
    return {argument: key for argument, key in table.items() if argument in arguments_of(ATTENTION[name])}


def kernel_of(config: Config, name: str) -> str | None:
    """Feature map of an attention, where it has one."""
    argument = arguments_of(ATTENTION[name]).get("kernel")
    if argument is None:
        return None
    return config.topomask.kernel if config.is_given("topomask.kernel") else argument.default


def uses_walks(config: Config) -> bool:
    """Whether an attention needs random walks."""
    return any(name.startswith("walk") for name in requirements(config))


def requirements(config: Config) -> tuple[str, ...]:
    """Attributes that the attentions need on a graph, each once."""
    with torch.random.fork_rng(devices=[]):  # asking must not change what is drawn later
        built = [build_attention(config, name) for name in attentions_of(config)]
    return tuple(dict.fromkeys(name for attention in built for name in getattr(attention, "requires", ())))


def build_attention(config: Config, name: str, layer: int = 0) -> Module:
    """The attention of that name, for one layer.

    A key of ``topomask`` that is not given leaves the argument at the class's own default. What an attention draws by a
    seed of its own (Performer's projections, BigBird's blocks) differs between runs and between layers.
    """
    arguments: dict[str, Any] = {}
    for argument, key in argument_keys(name).items():
        if not key.startswith("topomask.") or config.is_given(key):
            value = config.value(key)
            arguments[argument] = value.lower() if argument == "head_agg" else value
    if "seed" in arguments_of(ATTENTION[name]):
        arguments["seed"] = config.seed * 1000 + layer
    if name == "Transformer" and uses_pair_bias(config):
        arguments["attn_bias"] = BIAS
    if "expander" in arguments_of(ATTENTION[name]):
        arguments["expander"] = config.prep.exp and config.prep.use_exp_edges
    reads_edges = config.dataset.edge_encoder and arguments.get("graph_edges", True)
    if reads_edges and "edge_dim" in arguments_of(ATTENTION[name]):
        arguments["edge_dim"] = config.gt.dim_hidden
    return ATTENTION[name](config.gt.dim_hidden, **arguments)


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


def build_walks(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws what the attention needs, or none where it needs nothing."""
    if not uses_walks(config):
        return None
    followed = TRANSITION if config.topomask.transition == "attention" else None
    return AddRandomWalks(
        **{name: getattr(config.topomask, name) for name in WALK_KEYS}, seed=seed, transition=followed
    )


def build_expander(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws expander edges, or none where no attention wants them."""
    if "expander_index" not in requirements(config):
        return None
    prep = config.prep
    return AddExpanderEdges(prep.exp_deg, prep.num_virt_node, seed, prep.exp_max_num_iters, prep.exp_algorithm)


def build_sampling_transforms(config: Config, seed: int) -> list[BaseTransform]:
    """The transforms that draw what attentions need, on graphs as the model sees them."""
    return [step for step in (build_expander(config, seed), build_walks(config, seed)) if step is not None]
