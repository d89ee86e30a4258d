"""The transforms that add what attentions and masks need to graphs, and messages about graphs that do not fit."""

from __future__ import annotations

from typing import Any

from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.model.attentions import (
    argument_keys,
    built_attentions,
    mask_arguments,
    masks_of,
)
from pyg_topomask.transforms import that_add

WALK_KEYS = ("num_walks", "max_length", "halt_prob", "lengths", "scheme", "independent", "diagonal", "num_tables")
"""Keys of ``topomask`` that are arguments of :class:`~pyg_topomask.transforms.AddRandomWalks`."""

TRANSITION = "walk_transition"
"""Edge attribute with the probabilities of the walks' steps, up to a factor per node (dynamic GKAT)."""


def build_sampling_transforms(config: Config, seed: int) -> list[BaseTransform]:
    """The transforms that add what attentions and masks need, to be applied after all other transforms."""
    attentions, settings = built_attentions(config), dict[str, Any]()
    for attention in attentions:
        settings |= attention.transform_settings
    tables = max((attention.transform_settings.get("num_tables", 1) for attention in attentions), default=1)
    settings |= _settings(config, seed)
    settings["num_tables"] = max(tables, settings["num_tables"])  # stitched walks take several for each one
    return list(that_add(requirements_of(*attentions), **settings).transforms)


def _settings(config: Config, seed: int) -> dict[str, Any]:
    """What the config says about the transforms: arguments by their names."""
    topomask, prep = config.topomask, config.prep
    settings = {key: config.value(f"topomask.{key}") for key in WALK_KEYS}
    for name in masks_of(config):
        settings |= {key: value for key, value in mask_arguments(config, name).items() if key in WALK_KEYS}
    return settings | {
        "seed": seed,
        "transition": TRANSITION if topomask.transition == "attention" else None,
        "method": topomask.spanning_tree,
        "length": "edge_weight" if topomask.spanning_tree == "minimum" else None,
        "degree": prep.exp_deg,
        "num_virtual": prep.num_virt_node,
        "max_iters": prep.exp_max_num_iters,
        "algorithm": prep.exp_algorithm,
    }


def key_in(message: str, config: Config) -> str | None:
    """The key of the setting that a message mentions first, or None."""
    arguments = [*((name, f"topomask.{name}") for name in WALK_KEYS), *argument_keys(config)]
    arguments += [("edge_weight", "topomask.spanning_tree")] if config.topomask.spanning_tree == "minimum" else []
    named = {position: key for argument, key in arguments if (position := message.find(f"'{argument}'")) >= 0}
    return named[min(named)] if named else None


def key_to_set(message: str, config: Config) -> str:
    if "to_undirected" in message:
        return " (in configs, dataset.to_undirected: true)"
    key = key_in(message, config)
    return f" (key {key})" if key else ""
