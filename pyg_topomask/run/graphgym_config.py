"""GraphGym's ``cfg`` and our config: add our keys to the one, and translate it into the other."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pyg_topomask.run.config import Config
from pyg_topomask.run.config.dataset import PrepConfig
from pyg_topomask.run.config.encodings import KernelEncodingConfig, LapPEConfig
from pyg_topomask.run.config.model import GTConfig
from pyg_topomask.run.config.schema import add_mask_sections, nested_section
from pyg_topomask.run.config.topomask import TopomaskConfig

PREFIX = "Topomask"
"""Prefix of all our names, so that they differ from all others."""

_SECTIONS: dict[str, type[BaseModel]] = {
    "topomask": TopomaskConfig,
    "gt": GTConfig,
    "prep": PrepConfig,
    "posenc_LapPE": LapPEConfig,
    "posenc_RWSE": KernelEncodingConfig,
}
"""Sections that are added to GraphGym's and translated completely."""

_TYPES = {"node_encoder_num_types": 0, "edge_encoder_num_types": 0}
"""Keys that are added to GraphGym's section ``dataset``."""

_READ: dict[str, tuple[str, ...]] = {
    "gnn": ("act", "dropout", "batchnorm", "layers_post_mp"),
    "model": ("graph_pooling", "edge_decoding"),
    "dataset": ("node_encoder", "node_encoder_name", "edge_encoder", *_TYPES),
    "posenc_EquivStableLapPE": ("enable",),
    "share": ("gradient_checkpointing",),
}
"""Keys of other sections that are translated if ``cfg`` has them."""


def add_config(node: Any) -> None:
    """Add the keys of our sections to GraphGym's ``cfg``; existing keys keep their values."""
    add_mask_sections()
    for name, model in _SECTIONS.items():
        _fill(node, name, model)
    for name, default in _TYPES.items():
        if "dataset" in node and name not in node.dataset:
            node.dataset[name] = default


def _fill(node: Any, name: str, model: type[BaseModel]) -> None:
    if name not in node:
        node[name] = type(node)()
    for key, field in model.model_fields.items():
        nested = nested_section(field)
        if nested is not None:
            _fill(node[name], key, nested)
        elif key not in node[name]:
            # None means not given: then the default of the attention or the value of a flat key holds.
            not_given = key == "kernel" or name.startswith("mask_")
            node[name][key] = None if not_given else field.get_default(call_default_factory=True)


def translate(node: Any, **changes: dict[str, Any]) -> Config:
    """Our config with the values of GraphGym's.

    A key with the value :obj:`None` counts as not given, so that its default holds; for ``topomask.kernel`` that is the
    default of the attention.

    Args:
        node: GraphGym's ``cfg``.
        **changes: For each section, values that replace those of ``cfg``.

    Raises:
        ValueError: If our config does not allow a value.
    """
    values: dict[str, Any] = {"dataset": {"format": "PyG", "name": "graphgym"}}
    for section, model in _SECTIONS.items():
        values[section] = _known(node[section], model) if section in node else {}
    for section, keys in _READ.items():
        found = {key: node[section][key] for key in keys if section in node and key in node[section]}
        values[section] = values.get(section, {}) | found
    values["gnn"]["layers_post_mp"] = max(values["gnn"]["layers_post_mp"], 1)  # as GraphGym's own check does
    name = values["dataset"]["node_encoder_name"]
    values["dataset"]["node_encoder_name"] = name.removeprefix(PREFIX)
    for section, change in changes.items():
        values[section] |= change
    if "BiasedTransformer" in values["gt"].get("layer_type", "").split("+"):
        raise ValueError("gt.layer_type: BiasedTransformer is not provided in GraphGym; use Transformer")
    return Config.model_validate(values)


def _known(node: Any, model: type[BaseModel]) -> dict[str, Any]:
    """The values of a section for the keys of our schema, except None."""
    values = {}
    for key, field in model.model_fields.items():
        if key in node and node[key] is not None:
            nested = nested_section(field)
            values[key] = node[key] if nested is None else _known(node[key], nested)
    return values
