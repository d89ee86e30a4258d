"""Translate a config into the arguments of attentions, and into what these need on a graph."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from pyg_topomask.nn import ATTENTION, Attention
from pyg_topomask.nn.gps_network import BIAS
from pyg_topomask.run.config import Config
from pyg_topomask.run.model.encoders import uses_pair_bias

_TRANSLATIONS: dict[str, Callable[[Config, int], Any]] = {
    "seed": lambda config, layer: config.seed * 1000 + layer,  # runs and layers draw for themselves
    "gt.sparse.head_agg": lambda config, layer: config.gt.sparse.head_agg.lower(),
    "prep.exp": lambda config, layer: config.prep.exp and config.prep.use_exp_edges,
    "dataset.edge_encoder": lambda config, layer: config.gt.dim_hidden if config.dataset.edge_encoder else None,
    "posenc_GraphormerBias.enable": lambda config, layer: BIAS if uses_pair_bias(config) else None,
}
"""Keys whose value is not the argument itself → the argument, for a config and the layer's number."""


def attentions_of(config: Config) -> list[str]:
    """Names of the attentions in ``gt.layer_type``, in our spelling."""
    return [name for name in config.gt.parts if name in ATTENTION]


def build_attention(config: Config, name: str, layer: int = 0) -> Attention:
    """The attention of that name, for one layer."""
    return ATTENTION[name](config.gt.dim_hidden, **attention_arguments(config, name, layer))


def attention_arguments(config: Config, name: str, layer: int = 0) -> dict[str, Any]:
    """Constructor arguments that keys of the config give; a ``topomask`` key that is not given leaves the default."""
    arguments = {
        argument: _TRANSLATIONS[key](config, layer) if key in _TRANSLATIONS else config.value(key)
        for argument, key in ATTENTION[name].config_keys.items()
        if not key.startswith("topomask.") or config.is_given(key)
    }
    if not arguments.get("graph_edges", True):  # then features of edges have no use
        arguments["edge_dim"] = None
    return arguments


def argument_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (constructor argument, key) for which the attentions of a config have a use."""
    return [pair for name in attentions_of(config) for pair in ATTENTION[name].config_keys.items()]


def requirements(config: Config) -> tuple[str, ...]:
    """Attributes that the attentions need on a graph, each once."""
    names = [ATTENTION[name].requirements(**attention_arguments(config, name)) for name in attentions_of(config)]
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def uses_walks(config: Config) -> bool:
    """Whether an attention needs random walks."""
    return any(name.startswith("walk") for name in requirements(config))
