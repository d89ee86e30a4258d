"""The transforms that draw random walks and expander edges for attentions."""

from __future__ import annotations

from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.config import Config
from pyg_topomask.run.model.attentions import mask_arguments, mask_of, requirements, uses_walks
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

WALK_KEYS = ("num_walks", "max_length", "halt_prob", "scheme", "independent", "pair_table")
"""Keys of ``topomask`` that are arguments of :class:`~pyg_topomask.transforms.AddRandomWalks`."""

TRANSITION = "walk_transition"
"""Edge attribute with the probabilities of the walks' steps, up to a factor per node (dynamic GKAT)."""


def build_walks(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws walks; None if no attention needs them."""
    if not uses_walks(config):
        return None
    settings = {name: config.value(f"topomask.{name}") for name in WALK_KEYS}
    mask = mask_of(config)
    if mask is not None:
        settings |= {name: value for name, value in mask_arguments(config, mask).items() if name in WALK_KEYS}
    followed = TRANSITION if config.topomask.transition == "attention" else None
    return AddRandomWalks(**settings, seed=seed, transition=followed)


def build_expander(config: Config, seed: int) -> BaseTransform | None:
    """The transform that draws expander edges; None if no attention needs them."""
    if "expander_index" not in requirements(config):
        return None
    prep = config.prep
    return AddExpanderEdges(prep.exp_deg, prep.num_virt_node, seed, prep.exp_max_num_iters, prep.exp_algorithm)


def build_sampling_transforms(config: Config, seed: int) -> list[BaseTransform]:
    """The transforms that draw random structures for the attentions, to be applied after all other transforms."""
    return [step for step in (build_expander(config, seed), build_walks(config, seed)) if step is not None]
