"""Keys that a config gives and that change nothing, because another key decides that they are not read.

GraphGPS's files are full of them, so they are named, not refused. Those of ``topomask`` are refused, in
:mod:`pyg_topomask.run.check`.
"""

from __future__ import annotations

from typing import Any

from pyg_topomask.run.config.ignored import IGNORED_KEYS
from pyg_topomask.run.config.load import ParsedConfig
from pyg_topomask.run.config.schema import Config, all_keys

_WARM_UP = ("cosine_with_warmup", "linear_with_warmup", "polynomial_with_warmup")
_EXPHORMER = ("gt.layer_type", "Exphormer")

_READ_WITH: dict[str, tuple[Any, ...]] = {
    "gt.sparse": ("gt.layer_type", "KMIP"),
    "gt.bigbird": ("gt.layer_type", "BigBird"),
    "gt.full_graph": ("gt.layer_type", "SAN"),
    "gt.gamma": ("gt.layer_type", "SAN"),
    "prep.exp": _EXPHORMER,
    "prep.use_exp_edges": _EXPHORMER,
    "prep.exp_algorithm": _EXPHORMER,
    "prep.exp_deg": _EXPHORMER,
    "prep.exp_max_num_iters": _EXPHORMER,
    "prep.add_edge_index": _EXPHORMER,
    "prep.num_virt_node": _EXPHORMER,
    "gnn.layer_type": ("model.type", "custom_gnn"),
    "gnn.layers_mp": ("model.type", "custom_gnn"),
    "gnn.residual": ("model.type", "custom_gnn"),
    "model.param_budget": ("model.auto_satisfy_param_budget", True),
    "dataset.edge_encoder_name": ("dataset.edge_encoder", True),
    "dataset.edge_encoder_bn": ("dataset.edge_encoder", True),
    "optim.momentum": ("optim.optimizer", "sgd"),
    "optim.num_warmup_epochs": ("optim.scheduler", *_WARM_UP),
    "optim.steps": ("optim.scheduler", "step"),
    "optim.lr_decay": ("optim.scheduler", "step", "plateau"),
    "optim.reduce_factor": ("optim.scheduler", "reduce_on_plateau"),
    "optim.schedule_patience": ("optim.scheduler", "plateau", "reduce_on_plateau"),
    "optim.min_lr": ("optim.scheduler", "reduce_on_plateau"),
    "optim.clip_grad_norm_value": ("optim.clip_grad_norm", True),
    "train.num_parts": ("train.sampler", "random_partition", "cluster"),
    "train.neighbor_sizes": ("train.sampler", "neighbor"),
}
"""Key or section -> the key that decides whether it is read, and the values with which it is."""


def keys_without_effect(parsed: ParsedConfig) -> dict[str, list[str]]:
    """Reason -> the keys that were given and change nothing for that reason; an encoding's section stands for its keys.

    Args:
        parsed: A config without errors.
    """
    config, found = parsed.config, dict[str, list[str]]()
    for key in parsed.ignored:
        found.setdefault(IGNORED_KEYS[key], []).append(key)
    for key in filter(config.is_given, all_keys()):
        reason = _reason(config, key)
        if reason is not None:
            found.setdefault(reason, []).append(key)
    for section in (name for name in type(config).model_fields if name.startswith("posenc_")):
        given = getattr(config, section).model_fields_set - {"enable"}
        if given and section.removeprefix("posenc_") not in config.dataset.node_encoder_parts:
            found.setdefault("dataset.node_encoder_name does not name it", []).append(section)
    return found


def _reason(config: Config, key: str) -> str | None:
    """Why a key is not read with the values of the others; none where it is."""
    decisive, *values = _READ_WITH.get(key) or _READ_WITH.get(key.rpartition(".")[0]) or (None,)
    if decisive is None:
        return None
    if decisive == "gt.layer_type":
        return None if values[0] in config.gt.parts else f"gt.layer_type does not name {values[0]}"
    if config.value(decisive) in values:
        return None
    return f"{decisive} is {config.value(decisive)}"
