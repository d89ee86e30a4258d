"""The transforms that add what attentions and masks need to graphs, and messages about graphs that do not fit."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn.attention import EVERY_ATTENTION
from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.topomask import TopomaskConfig
from pyg_topomask.run.graphgps.model.attentions import (
    argument_keys,
    attentions_of,
    built_attentions,
    mask_arguments,
    masks_of,
)
from pyg_topomask.transforms import AddRandomWalks, that_add

WALKS = [name for name in signature(AddRandomWalks).parameters if name in TopomaskConfig.model_fields]
"""Keys of ``topomask`` that are arguments of the transform that draws walks, without ``transition``."""
WALKS.remove("transition")

_PREP = {
    "degree": "exp_deg",
    "num_virtual": "num_virt_node",
    "max_iters": "exp_max_num_iters",
    "algorithm": "exp_algorithm",
}
"""Arguments of the transform that draws expander edges, and their keys in ``prep``."""

TRANSITION = "walk_transition"
"""Edge attribute with the probabilities of the walks' steps, up to a factor per node (dynamic GKAT)."""


def follows_attention(config: Config) -> bool:
    """Whether walks follow the attention of the first layer, which must give weights to edges."""
    gives = any(hasattr(EVERY_ATTENTION[name], "edge_attention") for name in attentions_of(config))
    return gives and config.topomask.transition == "attention"


def build_sampling_transforms(config: Config, seed: int) -> list[BaseTransform]:
    """The transforms that add what attentions and masks need, to be applied after all other transforms."""
    attentions, settings = built_attentions(config), dict[str, Any]()
    for attention in attentions:
        settings |= attention.transform_settings
    tables = max((attention.transform_settings.get("num_tables", 1) for attention in attentions), default=1)
    required = requirements_of(*attentions)
    steps = that_add(required, **settings).transforms
    settings |= _settings(config, {name for step in steps for name in signature(type(step)).parameters})
    if "num_tables" in settings:
        settings["num_tables"] = max(tables, settings["num_tables"])  # stitched walks take several for each one
    return list(that_add(required, **settings | {"seed": seed}).transforms)


def _settings(config: Config, wanted: set[str]) -> dict[str, Any]:
    """What the config says about the transforms: those arguments, by their names, that they take."""
    topomask, settings = config.topomask, dict[str, Any]()
    if {*WALKS} <= wanted:
        own = {key for _, key in argument_keys(config)}
        for key in WALKS:  # the attention decides whether there are several tables, or which diagonal is meant
            is_read = key not in ("num_tables", "diagonal") or f"topomask.{key}" in own
            settings[key] = getattr(topomask, key) if is_read else topomask.peek(key)
        settings |= {"transition": TRANSITION if follows_attention(config) else None}
        settings |= {"redraw": topomask.redraw}  # not of the transform: the runner draws anew
    for name in masks_of(config):
        settings |= {key: value for key, value in mask_arguments(config, name).items() if key in WALKS}
    if "method" in wanted:
        tree = topomask.spanning_tree
        settings |= {"method": tree, "length": "edge_weight" if tree == "minimum" else None}
    return settings | {name: getattr(config.prep, key) for name, key in _PREP.items() if name in wanted}


def key_in(message: str, config: Config) -> str | None:
    """The key of the setting that a message mentions first, or None."""
    arguments = [*((name, f"topomask.{name}") for name in WALKS), *argument_keys(config)]
    arguments += (
        [("edge_weight", "topomask.spanning_tree")] if config.topomask.peek("spanning_tree") == "minimum" else []
    )
    named = {position: key for argument, key in arguments if (position := message.find(f"'{argument}'")) >= 0}
    return named[min(named)] if named else None


def key_to_set(message: str, config: Config) -> str:
    if "to_undirected" in message:
        return " (in configs, dataset.to_undirected: true)"
    key = key_in(message, config)
    return f" (key {key})" if key else ""
