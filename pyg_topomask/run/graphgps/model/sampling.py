"""The transforms that add what attentions and masks need to graphs, and messages about graphs that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.model.attentions import (
    argument_keys,
    built_attentions,
    layers_text,
    mask_arguments,
    mask_of,
    masks_of,
)
from pyg_topomask.run.process_memory import available_mib
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


@contextmanager
def refusing_graphs(config: Config) -> Iterator[None]:
    """Report a graph that a transform or a layer refuses as a :class:`RunError` with the layers' names and a key."""
    try:
        yield
    except ValueError as error:
        name = layers_text(config.gt.layer_type, mask_of(config))
        message = f"{name}: a graph of {config.dataset.name} does not fit: {error}{_key_to_set(str(error), config)}"
        raise RunError(message) from error


def check_memory(config: Config, given: Sequence[Data], drawn: Sequence[Data], remaining: int) -> None:
    """Refuse walks, edges and trees that will not fit into memory; the system would end the process without a message.

    Args:
        config: The config.
        given: Some graphs of the data set.
        drawn: The same graphs after the transforms.
        remaining: Number of graphs that have none of these attributes yet.

    Raises:
        RunError: If those of the remaining graphs will take more memory than is left.
    """
    pairs = zip(given, drawn)
    added = (value for old, new in pairs for key, value in new.to_dict().items() if key not in old)
    size = sum(value.nbytes for value in added if isinstance(value, Tensor)) / 2**20 / max(len(drawn), 1)
    needed, left = size * remaining, max(available_mib(), 0.0)
    if needed > left:
        raise RunError(
            f"{layers_text(config.gt.layer_type, mask_of(config))}: walks, edges and trees of {config.dataset.name} do "
            f"not fit into memory: {remaining} more graphs need about {needed:,.0f} MiB, and {left:,.0f} MiB are "
            "left; lower topomask.num_walks or prep.exp_deg, or choose another mask"
        )


def key_in(message: str, config: Config) -> str | None:
    """The key of the setting that a message mentions first, or None."""
    arguments = [*((name, f"topomask.{name}") for name in WALK_KEYS), *argument_keys(config)]
    arguments += [("edge_weight", "topomask.spanning_tree")] if config.topomask.spanning_tree == "minimum" else []
    named = {position: key for argument, key in arguments if (position := message.find(f"'{argument}'")) >= 0}
    return named[min(named)] if named else None


def _key_to_set(message: str, config: Config) -> str:
    if "to_undirected" in message:
        return " (in configs, dataset.to_undirected: true)"
    key = key_in(message, config)
    return f" (key {key})" if key else ""
