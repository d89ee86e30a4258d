"""The keys of a config, as text for readers and as JSON schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyg_topomask.run.config.ignored import IGNORED_KEYS
from pyg_topomask.run.config.schema import Config


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
    schema = Config.model_json_schema()
    yield from _keys(schema, schema, "")


def _keys(schema: dict[str, Any], section: dict[str, Any], prefix: str) -> Iterator[Key]:
    for name, entry in section["properties"].items():
        inner = _resolved(schema, entry)
        if "properties" in inner:
            yield from _keys(schema, inner, f"{prefix}{name}.")
        else:
            default = json.dumps(entry["default"], ensure_ascii=False) if "default" in entry else "required"
            yield Key(f"{prefix}{name}", _values(entry), default, " ".join(entry["description"].split()))


def _values(entry: dict[str, Any]) -> str:
    """The values that an entry of the schema allows, in words."""
    if "anyOf" in entry:
        return " or ".join(map(_values, entry["anyOf"]))
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    if entry["type"] == "array":
        return f"[{_values(entry['items'])}, ...]" if "items" in entry else f"list of {entry['minItems']} numbers"
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
    for reason in dict.fromkeys(IGNORED_KEYS.values()):
        lines += [f"  {', '.join(key for key in IGNORED_KEYS if IGNORED_KEYS[key] == reason)}: {reason}"]
    return "\n".join(lines)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config, for editors that complete and check YAML."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Config.model_json_schema()


def _resolved(schema: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The entry that a ``$ref`` refers to, or the entry itself."""
    return schema["$defs"][entry["$ref"].rsplit("/", 1)[1]] if "$ref" in entry else entry
