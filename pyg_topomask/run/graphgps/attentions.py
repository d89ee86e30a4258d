"""Build the attentions and masks of a config, and list the attributes that they need on a graph."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from itertools import accumulate, pairwise, zip_longest
from typing import Any

import torch
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import EVERY_ATTENTION, MASK, Attention, Mask, requirements_of
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.schema import MASK_KEY, takes_mask
from pyg_topomask.run.graphgps.config.topomask import TopomaskConfig
from pyg_topomask.transforms import AddRandomWalks, that_add

_TRANSLATIONS: dict[str, Callable[[Config, int], Any]] = {
    "seed": lambda config, layer: config.seed * 1000 + layer,  # runs and layers have different draws
    "gt.sparse.head_agg": lambda config, layer: config.gt.sparse.head_agg.lower(),
    "topomask.num_tables": lambda config, layer: walks_of_layer(config, layer),
    "prep.exp": lambda config, layer: config.prep.exp and config.prep.use_exp_edges,
    "dataset.edge_encoder": lambda config, layer: config.gt.dim_hidden if config.dataset.edge_encoder else None,
    "posenc_GraphormerBias.enable": lambda config, layer: "attn_bias" if config.has_pair_bias else None,
}
"""Keys whose value is not the argument itself, with a function of the config and the layer's number that gives it."""


def walks_of_layer(config: Config, layer: int) -> int | tuple[int, ...]:
    """Number of the set of walks that a layer uses, or one number for each head."""
    count, heads = config.topomask.num_tables, config.gt.n_heads
    if config.topomask.tables == "layer":
        return layer % count
    return tuple((layer * heads + head) % count for head in range(heads))


def build_attention(config: Config, name: str, layer: int = 0) -> Attention:
    """The attention of that name, for one layer."""
    arguments = attention_arguments(config, name, layer)
    if takes_mask(name):
        arguments["mask"] = build_mask(config, layer)
    return EVERY_ATTENTION[name](config.gt.dim_hidden, **arguments)


def build_mask(config: Config, layer: int = 0) -> Mask | list[Mask | None] | None:
    """The mask that ``topomask.mask`` gives to an attention of a layer, None, or a list of both."""
    names, counts = config.topomask.masks, config.topomask.mask_heads or []
    groups = [range(*ends) for ends in pairwise(accumulate(counts, initial=0))]
    masks = [
        None if name == "none" else MASK[name](**mask_arguments(config, name, layer, heads))
        for name, heads in zip_longest(names, groups)
    ]
    return masks[0] if isinstance(config.topomask.mask, str) else masks


def attention_arguments(config: Config, name: str, layer: int = 0) -> dict[str, Any]:
    """Constructor arguments of an attention, except its mask, from the config."""
    keys = dict(EVERY_ATTENTION[name].config_keys)
    without_edges = "graph_edges" in keys and not config.value(keys["graph_edges"])
    if without_edges:
        keys.pop("edge_dim", None)
    kernel = signature(EVERY_ATTENTION[name]).parameters.get("kernel")
    chosen = config.topomask.kernel if config.is_given("topomask.kernel") else kernel and kernel.default
    if kernel is not None and chosen != "softmax_rf":  # which alone draws random features
        keys.pop("num_features", None)
    return _arguments(config, keys, layer) | ({"edge_dim": None} if without_edges else {})


def mask_arguments(config: Config, name: str, layer: int = 0, heads: Sequence[int] | None = None) -> dict[str, Any]:
    """Constructor arguments of a layer's mask, from its section and the flat keys of the config.

    Args:
        config: The config.
        name: Name of the mask.
        layer: Number of the layer.
        heads: Numbers of the heads that the mask serves; all if :obj:`None`.

    Raises:
        ValueError: If the config lacks an argument without a default.
    """
    keys, section = _mask_keys(config, name), type(config.value(f"topomask.mask_{name}"))
    arguments = _arguments(config, keys, layer)
    for argument, parameter in signature(MASK[name]).parameters.items():
        if parameter.default is parameter.empty and argument in {*keys} - {*arguments}:
            text = section.model_fields[argument].description if argument in section.model_fields else None
            means = f": {text.replace('``', '').rstrip('.')}" if text else ""
            raise ValueError(f"mask {name} needs {argument!r}; set {keys[argument]}{means}")
    if heads is not None:
        arguments |= {"heads": len(heads)} if "heads" in arguments else {}
        table = arguments.get("table")
        arguments |= {"table": [table[head] for head in heads]} if isinstance(table, tuple) else {}
    return arguments


def _arguments(config: Config, keys: Mapping[str, str], layer: int = 0) -> dict[str, Any]:
    """Value of each argument; if a key of ``topomask`` is not given, the class's own default holds."""
    return {
        argument: _TRANSLATIONS[key](config, layer) if key in _TRANSLATIONS else config.value(key)
        for argument, key in keys.items()
        if key != MASK_KEY and (not key.startswith("topomask.") or config.is_given(key))
    }


def _mask_keys(config: Config, name: str) -> dict[str, str]:
    """The key of each constructor argument of a mask: a flat key, unless its section gives the argument."""
    section, flat = config.value(f"topomask.mask_{name}"), MASK[name].config_keys
    own = {argument: f"topomask.mask_{name}.{argument}" for argument in type(section).model_fields}
    return own | {argument: key for argument, key in flat.items() if argument not in section.model_fields_set}


def argument_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (constructor argument, key) of the attentions and the masks of a config."""
    tables = [EVERY_ATTENTION[name].config_keys for name in config.gt.attentions]
    tables += [_mask_keys(config, mask) for mask in config.masks]
    return [pair for keys in tables for pair in keys.items()]


def built_attentions(config: Config) -> list[Attention]:
    """The attentions of all layers on the meta device, which say what they need on a graph."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        names = config.gt.attentions
        return [build_attention(config, name, layer) for layer in range(config.gt.layers) for name in names]


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
        settings |= {"transition": TRANSITION if config.follows_attention else None}
        topomask.redraw  # noqa: B018  # noted as read: there are walks, which the runner may draw anew
    for name in config.masks:
        settings |= {key: value for key, value in mask_arguments(config, name).items() if key in WALKS}
    if "method" in wanted:
        tree = topomask.spanning_tree
        settings |= {"method": tree, "length": "edge_weight" if tree == "minimum" else None}
    return settings | {name: getattr(config.prep, key) for name, key in _PREP.items() if name in wanted}


def key_in(message: str, config: Config) -> str | None:
    """The key of the setting that a message mentions first, or None."""
    arguments = [*((name, f"topomask.{name}") for name in WALKS), *argument_keys(config)]
    if config.topomask.peek("spanning_tree") == "minimum":
        arguments.append(("edge_weight", "topomask.spanning_tree"))
    named = {position: key for argument, key in arguments if (position := message.find(f"'{argument}'")) >= 0}
    return named[min(named)] if named else None


def key_to_set(message: str, config: Config) -> str:
    if "to_undirected" in message:
        return " (in configs, dataset.to_undirected: true)"
    key = key_in(message, config)
    return f" (key {key})" if key else ""
