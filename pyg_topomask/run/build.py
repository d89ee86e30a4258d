"""Translate a config, once, into flat constructor arguments: model, walks or expander, optimiser, schedule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim.lr_scheduler import LambdaLR
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import ATTENTION, GPSModel, auxiliary_loss
from pyg_topomask.run.config import Config
from pyg_topomask.run.convs import CONVS
from pyg_topomask.run.errors import ConfigError, did_you_mean
from pyg_topomask.run.reading import Loaded
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

SPARSE_KEYS = {"gt.sparse.k": "k", "gt.sparse.kq_dim": "kq_dim", "gt.sparse.val_dim": "val_dim"}
SPARSE_KEYS |= {"gt.sparse.head_agg": "head_agg"}

ATTENTION_KEYS = {
    **SPARSE_KEYS,
    "gt.n_heads": "heads",
    "gt.attn_dropout": "dropout",
    "topomask.kernel": "kernel",
    "topomask.num_features": "num_features",
    "topomask.path": "path",
    "topomask.max_length": "max_length",
    "topomask.symmetric": "symmetric",
    "topomask.independent": "independent",
}
"""Config key -> constructor argument of an attention; one that the class lacks is not passed."""

WALK_KEYS = ("num_walks", "max_length", "halt_prob", "scheme", "independent", "pair_table")
"""Keys of ``topomask`` that are arguments of :class:`~pyg_topomask.transforms.AddRandomWalks`."""


MODEL_KEYS = ("topomask.feed_forward", "topomask.normalize_features", "topomask.input_dropout")
"""Keys of ``topomask`` that any model has a use for."""


def name_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that need the tables of convolutions and attentions."""
    found = []
    for kind, name, table in (("convolution", config.gt.conv, CONVS), ("attention", config.gt.attention, ATTENTION)):
        if name != "None" and name not in table:
            choices = ", ".join([*table, "None"])
            found.append(
                ("gt.layer_type", f"no {kind} is called {name!r}; there are {choices}." + did_you_mean(name, table))
            )
    conv = CONVS.get(config.gt.conv)
    if conv and conv.needs_edges and not config.dataset.edge_encoder:
        found.append(
            ("gt.layer_type", f"{config.gt.conv} needs edge features: set dataset.edge_encoder (and edge_encoder_name)")
        )
    by_attention = config.gt.attention in ATTENTION and "edge_dim" in _arguments(ATTENTION[config.gt.attention])
    if conv and not conv.takes_edges and not by_attention and config.dataset.edge_encoder_name == "LinearEdge":
        found.append(("dataset.edge_encoder_name", f"{config.gt.conv} takes no edge features"))
    return found


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) for keys that were given and that the chosen attention has no use for."""
    name = config.gt.attention
    arguments = _arguments(ATTENTION[name]) if name in ATTENTION else set()
    walks = _uses_walks(config)
    unused = []
    sections = {"prep": config.prep, "topomask": config.topomask}
    keys = [f"{section}.{key}" for section, values in sections.items() for key in type(values).model_fields]
    for key in ("gt.attn_dropout", *SPARSE_KEYS, *keys):
        if key in MODEL_KEYS or not config.is_set(key):
            continue
        for_walks = key.removeprefix("topomask.") in (*WALK_KEYS, "redraw")
        taken = ATTENTION_KEYS.get(key) in arguments or (key.startswith("prep.") and "expander" in arguments)
        if not (taken or (for_walks and walks)):
            unused.append((key, f"is given, but {config.gt.layer_type} has no use for it"))
    return unused


def _arguments(cls: type[Module]) -> set[str]:
    return set(inspect.signature(cls.__init__).parameters)


def _uses_walks(config: Config) -> bool:
    return any(name.startswith("walk") for name in requirements(config))


def requirements(config: Config) -> tuple[str, ...]:
    """Attributes that the attention needs on a graph."""
    if config.gt.attention == "None":
        return ()
    return tuple(getattr(build_attention(config), "requires", ()))


def build_attention(config: Config, edge_channels: int | None = None) -> Module:
    """The attention of one layer; edge features of so many channels go to an attention that takes them."""
    cls = ATTENTION[config.gt.attention]
    arguments = {}
    for key, argument in ATTENTION_KEYS.items():
        if argument in _arguments(cls):
            value = config.value(key)
            arguments[argument] = value.lower() if argument == "head_agg" else value
    if "expander" in _arguments(cls):
        arguments |= {"expander": config.prep.exp, "num_virtual": config.prep.num_virt_node}
        arguments["edge_dim"] = edge_channels if config.dataset.edge_encoder else None
    return cls(config.gt.dim_hidden, **arguments)


def build_conv(config: Config) -> Module:
    """The convolution of one layer."""
    entry = CONVS[config.gt.conv]
    edges = entry.takes_edges and config.dataset.edge_encoder
    return entry.build(config.gt.dim_hidden, config.gt.n_heads, config.gnn.act, edges)


def build_model(config: Config, in_channels: int, out_channels: int, edge_channels: int | None = None) -> GPSModel:
    """The model, for data with so many features, classes and edge features."""
    gt = config.gt
    conv = CONVS.get(gt.conv)
    uses_edges = conv is not None and conv.takes_edges and config.dataset.edge_encoder
    return GPSModel(
        in_channels,
        gt.dim_hidden,
        out_channels,
        gt.layers,
        conv=None if gt.conv == "None" else lambda layer: build_conv(config),
        attn=None if gt.attention == "None" else lambda layer: build_attention(config, edge_channels),
        edge_dim=edge_channels if uses_edges else None,
        pool=config.model.graph_pooling if config.dataset.task == "graph" else None,
        norm="layer_norm" if gt.layer_norm else "batch_norm" if gt.batch_norm else None,
        dropout=gt.dropout,
        act=config.gnn.act,
        feed_forward=config.topomask.feed_forward,
        head_layers=config.gnn.layers_post_mp,
        input_dropout=config.topomask.input_dropout,
    )


def apply_model(model: GPSModel, data: Data) -> Tensor:
    """Predictions of a model for a graph or batch; edge features go to a model that encodes them."""
    edge_attr = data.edge_attr if model.edge_encoder is not None else None
    return model(data.x, data.edge_index, batch=data.batch, graph=data, edge_attr=edge_attr)


def build_walks(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws what the attention needs, or none where it needs nothing."""
    if "expander_index" in requirements(config):
        prep = config.prep
        return AddExpanderEdges(prep.exp_deg, prep.num_virt_node, seed, prep.exp_max_num_iters)
    if not _uses_walks(config):
        return None
    return AddRandomWalks(**{name: getattr(config.topomask, name) for name in WALK_KEYS}, seed=seed)


def build_optimizer(config: Config, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """AdamW, or Adam with the weight decay added to the gradient."""
    optim = config.optim
    cls = torch.optim.AdamW if optim.optimizer == "adamW" else torch.optim.Adam
    return cls(parameters, lr=optim.base_lr, weight_decay=optim.weight_decay)


def learning_rate_factor(epoch: int, num_warmup_epochs: int, max_epoch: int) -> float:
    """GraphGPS's ``cosine_with_warmup``: linear from 0 (1e-6 in epoch 0) to 1, then half a cosine down to 0."""
    if epoch < num_warmup_epochs:
        return max(1e-6, epoch / num_warmup_epochs)
    progress = (epoch - num_warmup_epochs) / max(1, max_epoch - num_warmup_epochs)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def build_scheduler(config: Config, optimizer: torch.optim.Optimizer) -> LambdaLR | None:
    """The schedule, stepped once an epoch."""
    optim = config.optim
    if optim.scheduler == "none":
        return None
    return LambdaLR(optimizer, lambda epoch: learning_rate_factor(epoch, optim.num_warmup_epochs, optim.max_epoch))


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
