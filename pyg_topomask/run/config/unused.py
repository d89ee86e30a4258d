"""Keys that are given but not read, because of the value of another key.

GraphGPS's files have many of them, so they are listed and not refused. Those of ``topomask`` are refused, in
:mod:`pyg_topomask.run.check`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyg_topomask.nn import ATTENTION
from pyg_topomask.run.config.ignored import IGNORED_KEYS
from pyg_topomask.run.config.load import ParsedConfig
from pyg_topomask.run.config.schema import Config, all_keys
from pyg_topomask.run.data.formats import is_one_graph, level_of, possible_tasks
from pyg_topomask.run.model.attentions import attention_arguments, attentions_of
from pyg_topomask.run.model.convs import CONVS
from pyg_topomask.run.model.encoders import uses_pair_bias

_WARM_UP = ("cosine_with_warmup", "linear_with_warmup", "polynomial_with_warmup")
_READERS: dict[tuple[Any, ...], str] = {
    ("gt.layer_type", "KMIP"): "gt.sparse",
    ("gt.layer_type", "BigBird"): "gt.bigbird",
    ("gt.layer_type", "SAN"): "gt.full_graph gt.gamma",
    ("gt.layer_type", "Exphormer"): "prep.exp prep.use_exp_edges prep.exp_algorithm prep.exp_deg "
    "prep.exp_max_num_iters prep.add_edge_index prep.num_virt_node",
    ("model.type", "custom_gnn"): "gnn.layer_type gnn.layers_mp gnn.residual",
    ("model.auto_satisfy_param_budget", True): "model.param_budget",
    ("wandb.use", True): "wandb.entity wandb.project wandb.name",
    ("dataset.node_encoder_name", "TypeDictNode"): "dataset.node_encoder_num_types",
    ("dataset.edge_encoder_name", "TypeDictEdge"): "dataset.edge_encoder_num_types",
    ("dataset.edge_encoder", True): "dataset.edge_encoder_name dataset.edge_encoder_bn",
    ("optim.optimizer", "sgd"): "optim.momentum",
    ("optim.scheduler", *_WARM_UP): "optim.num_warmup_epochs",
    ("optim.scheduler", "step"): "optim.steps",
    ("optim.scheduler", "step", "plateau"): "optim.lr_decay",
    ("optim.scheduler", "plateau", "reduce_on_plateau"): "optim.schedule_patience",
    ("optim.scheduler", "reduce_on_plateau"): "optim.reduce_factor optim.min_lr",
    ("optim.clip_grad_norm", True): "optim.clip_grad_norm_value",
    ("train.sampler", "random_partition", "cluster"): "train.num_parts",
    ("train.sampler", "neighbor"): "train.neighbor_sizes",
}
_READ_WITH = {key: row for row, keys in _READERS.items() for key in keys.split()}
"""Key or section, mapped to the key that decides whether it is read, and the values with which it is read."""


_SPLIT_KEYS = ("dataset.split", "dataset.split_seed", "dataset.split_dir")


def _reads_edges(config: Config) -> bool:
    """Whether a convolution, an attention or the bias of pairs reads encoded edge features."""
    alone = config.model.type == "custom_gnn"  # whose GAT has no edge features, as in GraphGPS
    convs = (name for name in config.gt.parts if name in CONVS and not (alone and name == "GAT"))
    named = "GraphormerBias" in config.dataset.node_encoder_parts and uses_pair_bias(config)
    paths = named and config.dataset.edge_encoder_name == "TypeDictEdge"
    attends = any(_may_attend_to_edges(config, name) for name in attentions_of(config))
    return attends or paths or any(CONVS[name].takes_edges for name in convs)


def _may_attend_to_edges(config: Config, name: str) -> bool:
    """Whether an attention reads edge features; taken as true for one that is defined outside of the package."""
    is_ours = ATTENTION[name].__module__.startswith("pyg_topomask.")
    return not is_ours or attention_arguments(config, name).get("edge_dim") is not None


def _has_attn_dropout(config: Config) -> bool:
    return any("gt.attn_dropout" in ATTENTION[name].config_keys.values() for name in attentions_of(config))


def _reads_gnn_dropout(config: Config) -> bool:
    return config.gnn.layers_pre_mp > 0 or config.gnn.head == "mlp_graph" or config.model.type == "custom_gnn"


_UNREAD: dict[str, tuple[Callable[[Config], bool], str]] = {
    "dataset.edge_encoder dataset.edge_encoder_name dataset.edge_encoder_bn dataset.edge_encoder_num_types": (
        lambda config: config.dataset.edge_encoder and not _reads_edges(config),
        "no part of gt.layer_type reads edge features",
    ),
    "gt.attn_dropout": (lambda config: not _has_attn_dropout(config), "no part of gt.layer_type has it"),
    "gnn.dropout": (
        lambda config: not _reads_gnn_dropout(config),
        "gnn.layers_pre_mp is 0, and only the head mlp_graph and custom_gnn have it",
    ),
    "gnn.batchnorm": (lambda config: config.gnn.layers_pre_mp == 0, "gnn.layers_pre_mp is 0"),
    "dataset.resample_negative": (
        lambda config: not possible_tasks(config.dataset)[0].ranked,
        "only pcqm-contact draws such edges",
    ),
    "model.graph_pooling": (
        lambda config: level_of(config.dataset) != "graph" and config.model.graph_pooling != "graph_token",
        "only graphs are pooled, and the data set has other targets",
    ),
    "train.batch_size": (
        lambda config: is_one_graph(config.dataset) and config.train.sampler != "neighbor",
        "the data set is one graph",
    ),
    "train.shuffle": (
        lambda config: is_one_graph(config.dataset) and config.train.sampler == "full_batch",
        "the data set is one graph",
    ),
    "prep.add_self_loops": (lambda config: not is_one_graph(config.dataset), "the data set is not one graph"),
}
_CONDITIONS = {key: row for keys, row in _UNREAD.items() for key in keys.split()}
"""Key, mapped to a function of the config that says whether it is left unread, and the reason."""


def keys_without_effect(parsed: ParsedConfig) -> dict[str, list[str]]:
    """The keys that were given without effect, grouped by the reason; an encoding's section represents its keys.

    Args:
        parsed: A config without errors.
    """
    config, written, found = parsed.config, parsed.written or parsed.config, dict[str, list[str]]()
    for key in parsed.ignored:
        found.setdefault(IGNORED_KEYS[key], []).append(key)
    if config.pretrained.dir and parsed.written is None:
        return found  # the model is that of a run which does not exist yet
    for key in filter(written.is_given, all_keys()):
        reason = unread_because(config, key)
        if reason is not None:
            found.setdefault(reason, []).append(key)
    for section in (name for name in type(config).model_fields if name.startswith("posenc_")):
        given = getattr(written, section).model_fields_set - {"enable"}
        if given and section.removeprefix("posenc_") not in config.dataset.node_encoder_parts:
            found.setdefault("dataset.node_encoder_name does not contain it", []).append(section)
    return found


def unread_because(config: Config, key: str) -> str | None:
    """Why a key is not read with the values of the others; None if it is read."""
    if key.startswith("pretrained.") and not config.pretrained.dir:
        return "pretrained.dir is not given"
    if key in _SPLIT_KEYS and key not in config.dataset.split_settings:
        return f"dataset.split_mode is {config.dataset.split_mode}"
    if key == "model.edge_decoding" and level_of(config.dataset) != "edge":
        return f"{level_of(config.dataset)}s are predicted, not edges"
    is_unread, why = _CONDITIONS.get(key, (None, None))
    if is_unread is not None and is_unread(config):
        return why
    decisive, *values = _READ_WITH.get(key) or _READ_WITH.get(key.rpartition(".")[0]) or (None,)
    if decisive is None:
        return None
    parts = {"gt.layer_type": config.gt.parts, "dataset.node_encoder_name": config.dataset.node_encoder_parts}
    if decisive in parts:
        return None if values[0] in parts[decisive] else f"{decisive} does not contain {values[0]}"
    if config.value(decisive) in values:
        return None
    return f"{decisive} is {config.value(decisive)}"
