"""The keys of a config, as text for readers and as JSON schema for editors."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyg_topomask.run.graphgps.config.schema import Config, all_keys
from pyg_topomask.run.graphgps.config.schema import keys as schema_keys


class Key(NamedTuple):
    """One key of a config."""

    name: str
    """Name with its sections, such as ``gt.layers``."""
    values: str
    """Allowed values, such as ``integer ≥ 1``."""
    default: str
    """Default in the spelling of YAML; ``required`` if there is none."""
    description: str
    """What the key does."""


def keys() -> Iterator[Key]:
    """Every key that the runner reads, section by section."""
    whole = Config.model_json_schema()
    for name in all_keys():
        entry = whole
        for part in name.split("."):
            section = whole["$defs"][entry["$ref"].rsplit("/", 1)[1]] if "$ref" in entry else entry
            entry = section["properties"][part]
        default = json.dumps(entry["default"], ensure_ascii=False) if "default" in entry else "required"
        yield Key(name, _values(entry), default, " ".join(entry["description"].split()))


def _values(entry: dict[str, Any]) -> str:
    """The values that an entry of the schema allows, in words."""
    if "anyOf" in entry:
        return " or ".join(map(_values, entry["anyOf"]))
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    if entry["type"] == "array":
        return f"[{_values(entry['items'])}, ...]"
    bounds = [f"{sign} {entry[name]}" for name, sign in _BOUNDS.items() if name in entry]
    return " ".join([_TYPES[entry["type"]], " and ".join(bounds)]).strip()


_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def reference_text() -> str:
    """The keys as text: name, allowed values, default and description."""
    lines = ["keys"]
    for key in keys():
        lines += [f"  {key.name}: {key.values}; default {key.default}".replace("default required", "required")]
        lines += [f"      {key.description}"]
    lines += ["", "keys of GraphGPS and its forks that are accepted and have no effect"]
    ignored: dict[str, list[str]] = {}
    for entry in schema_keys():
        if entry.no_effect_because:
            ignored.setdefault(entry.no_effect_because, []).append(entry.name)
    lines += [f"  {', '.join(names)}: {reason}" for reason, names in ignored.items()]
    return "\n".join(lines)
