"""Translate a config, once, into flat constructor arguments: model, walks, optimiser, schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import ATTENTION, GPSModel, auxiliary_loss
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.model import PEER_ATTENTIONS
from pyg_topomask.run.convs import CONVS, ConvSettings
from pyg_topomask.run.errors import ConfigError, did_you_mean
from pyg_topomask.run.reading import Loaded
from pyg_topomask.run.schedules import build_optimizer, build_scheduler
from pyg_topomask.transforms import AddRandomWalks

ATTENTION_KEYS = {
    "gt.sparse.k": "k",
    "gt.sparse.kq_dim": "kq_dim",
    "gt.sparse.val_dim": "val_dim",
    "gt.sparse.head_agg": "head_agg",
    "gt.bigbird.block_size": "block_size",
    "gt.bigbird.num_random_blocks": "num_random",
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

MODEL_KEYS = ("topomask.feed_forward", "topomask.normalize_features", "topomask.input_dropout")
"""Keys of ``topomask`` that any model has a use for."""


NODE_ENCODERS = ("LinearNode", "Constant")
EDGE_ENCODERS = ("LinearEdge", "DummyEdge")


def _beyond_the_model(config: Config) -> list[tuple[str, str]]:
    """Settings that would change the model and that `build_model` does not read: refused, never ignored."""
    data = config.dataset
    given = {
        "gnn.head": config.gnn.head not in ("default", "graph", "node"),
        "gnn.layers_pre_mp": config.gnn.layers_pre_mp > 0,
        "gnn.batchnorm": config.gnn.batchnorm and config.gnn.layers_post_mp > 1,
        "gnn.dropout": config.gnn.dropout > 0 and config.gnn.layers_post_mp > 1,
        "model.graph_pooling": config.model.graph_pooling not in ("mean", "add", "max"),
        "dataset.node_encoder": not data.node_encoder,
        "dataset.node_encoder_bn": bool(data.node_encoder_bn),
        "dataset.edge_encoder_bn": data.edge_encoder and data.edge_encoder_bn,
        "gt.layer_norm": config.gt.layer_norm and config.model.type != "GPSModel",
    }
    return [(key, "the runner's model does not have it") for key, is_given in given.items() if is_given]


def convs_of(config: Config) -> list[str]:
    """Names of the convolutions in ``gt.layer_type``."""
    return [name for name in config.gt.parts if name in CONVS]


def attentions_of(config: Config) -> list[str]:
    """Names of the attentions in ``gt.layer_type``, in our spelling."""
    return [name for name in config.gt.parts if name in ATTENTION]


def name_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that need the tables of convolutions and attentions."""
    found = []
    for place, written in enumerate(config.gt.layer_type.split("+")):
        if written == "None" or PEER_ATTENTIONS.get(written, written) in {*CONVS, *ATTENTION}:
            continue
        kind, table = ("attention", [*ATTENTION, *PEER_ATTENTIONS]) if place else ("convolution", list(CONVS))
        choices = ", ".join([*table, "None"])
        hint = did_you_mean(written, {*CONVS, *ATTENTION, *PEER_ATTENTIONS})
        found.append(("gt.layer_type", f"no {kind} is called {written!r}; there are {choices}.{hint}"))
    found += _beyond_the_model(config)
    data = config.dataset
    for kind, given, known in (
        ("node", data.node_encoder_parts, NODE_ENCODERS),
        ("edge", data.edge_encoder_name.split("+") if data.edge_encoder else [], EDGE_ENCODERS),
    ):
        for name in given:
            if name not in known:
                message = f"no encoder is called {name!r}; there are {', '.join(known)}." + did_you_mean(name, known)
                found.append((f"dataset.{kind}_encoder_name", message))
    for name in convs_of(config):
        if CONVS[name].needs_edges and not config.dataset.edge_encoder:
            found.append(
                ("gt.layer_type", f"{name} needs edge features: set dataset.edge_encoder (and edge_encoder_name)")
            )
    for name in attentions_of(config):
        lacking = {
            key for key, argument in OWN_KEYS.get(name, {}).items() if argument not in _arguments(ATTENTION[name])
        }
        found += [(key, f"{name} has no such setting") for key in sorted(lacking) if config.is_set(key)]
    return found


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) for keys of ``topomask`` that were given and that no attention has a use for."""
    used = {key for name in attentions_of(config) for key in _argument_keys(name).values()}
    if any("auxiliary_loss" in vars(build_attention(config, name)) for name in attentions_of(config)):
        used.add("topomask.eta")
    if _uses_walks(config):
        used |= {f"topomask.{name}" for name in (*WALK_KEYS, "redraw")}
    unused = []
    for key in (f"topomask.{name}" for name in type(config.topomask).model_fields):
        if config.is_set(key) and key not in used and key not in MODEL_KEYS:
            unused.append((key, f"is given, but {config.gt.layer_type} has no use for it"))
    kernels = {kernel for name in attentions_of(config) if (kernel := _kernel(config, name)) is not None}
    if config.is_set("topomask.num_features") and kernels and "softmax_rf" not in kernels:
        message = f"only kernel softmax_rf has it (got {', '.join(map(repr, sorted(kernels)))})"
        unused.append(("topomask.num_features", message))
    return unused


def _arguments(cls: type[Module]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls.__init__).parameters


def _argument_keys(name: str) -> dict[str, str]:
    """Constructor argument -> config key, for those that the attention has."""
    table = {argument: key for key, argument in ATTENTION_KEYS.items()}
    table |= {argument: key for key, argument in OWN_KEYS.get(name, {}).items()}
    return {argument: key for argument, key in table.items() if argument in _arguments(ATTENTION[name])}


def _kernel(config: Config, name: str) -> str | None:
    argument = _arguments(ATTENTION[name]).get("kernel")
    if argument is None:
        return None
    return config.topomask.kernel if config.is_given("topomask.kernel") else argument.default


def _uses_walks(config: Config) -> bool:
    return any(name.startswith("walk") for name in requirements(config))


def requirements(config: Config) -> tuple[str, ...]:
    """Attributes that the attentions need on a graph, each once."""
    with torch.random.fork_rng(devices=[]):  # asking must not change what is drawn later
        built = [build_attention(config, name) for name in attentions_of(config)]
    return tuple(dict.fromkeys(name for attention in built for name in getattr(attention, "requires", ())))


def build_attention(config: Config, name: str) -> Module:
    """The attention of that name, for one layer.

    A key of ``topomask`` that is not given leaves the argument at the class's own default.
    """
    arguments: dict[str, Any] = {}
    for argument, key in _argument_keys(name).items():
        if not key.startswith("topomask.") or config.is_given(key):
            value = config.value(key)
            arguments[argument] = value.lower() if argument == "head_agg" else value
    if "expander" in _arguments(ATTENTION[name]):
        arguments["expander"] = config.prep.exp and config.prep.use_exp_edges
    if "edge_dim" in _arguments(ATTENTION[name]) and config.dataset.edge_encoder:
        arguments["edge_dim"] = config.gt.dim_hidden
    return ATTENTION[name](config.gt.dim_hidden, **arguments)


def build_conv(config: Config, name: str, layer: int = 0) -> Module:
    """The convolution of that name, for one layer."""
    entry, gt = CONVS[name], config.gt
    edges = entry.takes_edges and config.dataset.edge_encoder
    stable = config.posenc_EquivStableLapPE.enable
    return entry.build(
        ConvSettings(gt.dim_hidden, gt.n_heads, config.gnn.act, gt.dropout, edges, stable, last=layer == gt.layers - 1)
    )


def build_model(config: Config, in_channels: int, out_channels: int, edge_channels: int | None = None) -> GPSModel:
    """The model, for data with so many features, classes and edge features."""
    gt, convs, attentions = config.gt, convs_of(config), attentions_of(config)
    uses_edges = config.dataset.edge_encoder and any(CONVS[name].takes_edges for name in convs)
    return GPSModel(
        in_channels,
        gt.dim_hidden,
        out_channels,
        gt.layers,
        conv=_branches(lambda name, layer: build_conv(config, name, layer), convs),
        attn=_branches(lambda name, layer: build_attention(config, name), attentions),
        edge_dim=edge_channels if uses_edges else None,
        pool=config.model.graph_pooling if config.dataset.task == "graph" else None,
        norm="layer_norm" if gt.layer_norm else "batch_norm" if gt.batch_norm else None,
        dropout=gt.dropout,
        act=config.gnn.act,
        feed_forward=config.topomask.feed_forward and config.model.type != "SingleModel",
        head_layers=config.gnn.layers_post_mp,
        input_dropout=config.topomask.input_dropout,
        checkpoint=config.share.gradient_checkpointing,
    )


def _branches(build: Callable[[str, int], Module], names: list[str]) -> Callable[[int], list[Module]] | None:
    """A function of the layer's number that builds its branches of one kind."""
    return (lambda layer: [build(name, layer) for name in names]) if names else None


def apply_model(model: GPSModel, data: Data) -> Tensor:
    """Predictions of a model for a graph or batch; edge features go to a model that encodes them."""
    edge_attr = data.edge_attr if model.edge_encoder is not None else None
    return model(data.x, data.edge_index, batch=data.batch, graph=data, edge_attr=edge_attr)


def build_walks(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws what the attention needs, or none where it needs nothing."""
    if not _uses_walks(config):
        return None
    return AddRandomWalks(**{name: getattr(config.topomask, name) for name in WALK_KEYS}, seed=seed)


def fake_batch(config: Config) -> Data:
    """Two small graphs with what the model asks of its data: to try a config without any."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])
    walks = build_walks(config, seed=0)
    graphs = []
    for label in range(2):
        graph = Data(x=torch.rand(4, 3, generator=generator), edge_index=edge_index, y=torch.tensor([label]))
        if config.dataset.edge_encoder:
            graph.edge_attr = torch.ones(edge_index.size(1), 1)
        graphs.append(graph if walks is None else walks(graph))
    return Batch.from_data_list(graphs)


def check_loaded(loaded: Loaded) -> list[str]:
    """Try all that can be tried before any data are loaded; return the keys that an override made idle.

    A key that the chosen attention has no use for is refused, unless the command line chose the attention: a config
    may be run with its mask switched off as it stands.

    Raises:
        ConfigError: If the model cannot be built, or fails on a fake graph.
    """
    loaded.refuse(name_problems(loaded.config))
    arguments = ATTENTION_KEYS | {f"topomask.{name}": name for name in WALK_KEYS}
    random_state, section = torch.get_rng_state(), "gt"
    try:
        idle = unused_keys(loaded.config)
        section = "topomask"
        batch = fake_batch(loaded.config)
        section = "gt"
        _try_model(loaded.config, batch)
    except (ValueError, TypeError) as error:
        key = next((key for key, name in arguments.items() if f"'{name}'" in str(error)), section)
        raise ConfigError(loaded.describe(key, f"the model cannot be built: {error}")) from error
    finally:
        torch.set_rng_state(random_state)
    if "gt.layer_type" not in loaded.overridden:
        loaded.refuse(idle)
    return [key for key, _ in idle]


def _try_model(config: Config, batch: Data) -> None:
    model = build_model(config, 3, 2, edge_channels=1)
    out = apply_model(model, batch)
    (out.sum() + auxiliary_loss(model)).backward()
    build_scheduler(config, build_optimizer(config, model.parameters()))
