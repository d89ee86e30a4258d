"""Read a :class:`Config` from YAML and command-line overrides; messages give the file and line of each problem."""

import copy
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pyg_topomask.run.errors import ConfigError, did_you_mean, nearest
from pyg_topomask.run.graphgps.config import schema
from pyg_topomask.run.graphgps.config.base import AlsoCalled, noting_reads, takes_text
from pyg_topomask.run.graphgps.config.model import REPLACED
from pyg_topomask.run.graphgps.config.schema import Config, all_keys, keys, section_of

MAX_PROBLEMS = 20
"""Number of problems that a message names."""


@dataclass
class ParsedConfig:
    """A config and its origin.

    Args:
        config: The config.
        name: Name of the config and of the folder of its runs: the stem of the file, followed by ``name_tag``.
        file: The file; None if the config was not read from a file.
        lines: The line of each key in the file.
        overridden: The keys that were given on the command line.
        written: The config before missing keys were copied from another run; None if none were.
    """

    config: Config
    name: str
    file: str | None = None
    lines: dict[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    written: Config | None = None

    def refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        """Raise a :class:`ConfigError` for pairs (key, what is wrong), if there are any."""
        lines = [self.describe(key, message) for key, message in problems]
        if lines:
            raise ConfigError("\n".join(lines))

    def describe(self, key: str, message: str) -> str:
        """One line with the place where the key was set, its name, and the message."""
        if any(name == key or (name.startswith(f"{key}.") and key not in self.lines) for name in self.overridden):
            return f"command line: {key}: {message}"
        line, parent = self.lines.get(key), key
        while line is None and "." in parent:
            parent = parent.rsplit(".", 1)[0]
            line = self.lines.get(parent)
        where = self.file if line is None or self.file is None else f"{self.file}, line {line}"
        return f"{where}: {key}: {message}" if where else f"{key}: {message}"


ConfigSource = str | Path | Mapping[str, Any] | Config


def load(source: ConfigSource, overrides: Sequence[str] = (), name: str = "config") -> ParsedConfig:
    """Read a config from a file, a nested mapping or a :class:`Config`, apply overrides and validate it.

    Raises:
        ConfigError: If the text is not YAML, a key is unknown, or values are wrong or contradict each other.
    """
    schema.add_mask_sections()
    lines: dict[str, int] = {}
    file = None
    if isinstance(source, Config):
        values = source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        values = copy.deepcopy(dict(source))
    else:
        if not str(source):
            raise ConfigError("the name of the config file is empty")
        file, name = str(source), Path(source).stem
        values, lines = read_yaml(Path(source))
    overridden = _override(values, overrides)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        draft = ParsedConfig(Config.model_construct(), name, file, lines, overridden)
        errors = error.errors()
        rest = [("config", f"has {len(errors) - MAX_PROBLEMS} more problems")] if len(errors) > MAX_PROBLEMS else []
        draft.refuse([*map(_explain, errors[:MAX_PROBLEMS]), *rest])
        raise
    with noting_reads():
        name += f"-{config.name_tag}" if config.name_tag else ""
    parsed = ParsedConfig(config, name, file, lines, overridden)
    parsed.refuse(schema.contradictions(config, complete=not config.pretrained.dir))
    return parsed


def _override(values: dict[str, Any], overrides: Sequence[str]) -> frozenset[str]:
    """Apply ``key=value`` and ``key value`` to nested values, in place; return the keys."""
    keys, rest = [], list(overrides)
    while rest:
        key, equals, text = rest.pop(0).partition("=")
        if not equals and not rest:
            raise ConfigError(f"command line: {key}: no value given; use {key}=VALUE or {key} VALUE")
        keys += _set(values, key, _value(key, text if equals else rest.pop(0)))
    return frozenset(keys)


def _value(key: str, text: str) -> Any:
    """The value that a text has as YAML; in a name, 007 is text, not a number."""
    *sections, name = key.split(".")
    section = section_of(sections)
    field = section.model_fields.get(name) if section else None
    is_name = field is not None and takes_text(field.annotation)
    try:
        value = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except Exception as error:  # invalid scalars, such as the date 2024-13-45, raise many kinds of errors
        if is_name:
            return text
        raise ConfigError(f"command line: {key}: {_shown(text)} is not a YAML value ({_reason(error)})") from None
    is_number = isinstance(value, (int, float, date)) and not isinstance(value, bool)
    return text if is_name and is_number else value


def _set(values: dict[str, Any], key: str, value: Any) -> list[str]:
    """Set the value of ``section.name``, or of each key in a section such as ``gt={layers: 3}``; return the keys."""
    *sections, name = key.split(".")
    if isinstance(value, dict) and value and section_of([*sections, name]) is not None:
        return [found for inner in value for found in _set(values, f"{key}.{inner}", value[inner])]
    for section in sections:
        found = {} if values.get(section) is None else values[section]
        if not isinstance(found, dict):
            raise ConfigError(f"command line: {key}: {section!r} is not a section")
        values[section] = dict(found)  # a copy: by an alias of YAML, two sections may be one mapping
        values = values[section]
    values[name] = value
    return [key]


def _explain(error: Any) -> tuple[str, str]:
    """(key, message) of one pydantic error."""
    path = [part for part in error["loc"] if isinstance(part, str)]
    key, kind, given = ".".join(_known_path(path)), error["type"], error.get("input")
    if kind == "invalid_key":
        return ".".join([*error["loc"][:-1], str(given)]), "a key must be a name"
    if kind == "extra_forbidden":
        return key, "moved to train.compile" if key == "compile" else "unknown key." + _suggest_key(key)
    if kind == "missing":
        return key, "this key is required"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        if not choices:
            return key, f"must be {error['ctx']['expected'].lower()} (got {_shown(given)})"
        hint = did_you_mean(given, choices) if isinstance(given, str) else ""
        hint = f" Instead, {REPLACED[given]}" if hint == "" and isinstance(given, str) and given in REPLACED else hint
        return key, f"must be one of {', '.join(choices)} (got {_shown(given)}).{hint}"
    message = error["msg"].removeprefix("Value error, ")
    first = message[0] if message[1:2].isupper() else message[0].lower()  # an acronym such as GCN keeps its capital
    return key, f"{first}{message[1:]} (got {_shown(given)})"


def _shown(value: Any) -> str:
    """A short text for any value; a YAML alias can expand to billions of entries."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 80


def _known_path(path: list[str]) -> list[str]:
    """The path down to the key, without the tags that pydantic appends for the members of a union."""
    depth = 0
    while depth < len(path) and section_of(path[:depth]) is not None:
        depth += 1
    return path[:depth]


def _suggest_key(key: str) -> str:
    """Suggest our key for another library's name, else the nearest key of the section, of that name, or of all."""
    known, (section, _, name) = all_keys(), key.rpartition(".")
    found = next((key.name for key in keys() if AlsoCalled(name) in key.field.metadata), None)
    siblings = {k.removeprefix(f"{section}."): k for k in known if section and k.startswith(f"{section}.")}
    found = found or siblings.get(nearest(name, siblings) or "")
    found = found or next((k for k in known if k.rsplit(".", 1)[-1] == name), None)
    found = found or nearest(key, [*known, *(k for k in Config.model_fields if section_of([k]))])
    return f" Did you mean {found!r}?" if found else ""


class _Loader(yaml.SafeLoader):
    """Reads numbers as YAML 1.2 does: ``1e-5`` is one, ``1:30`` and ``010`` (90 and 8 in YAML 1.1) are not."""


_NUMBERS = {
    "int": r"^[-+]?(0|[1-9]\d*|0x[\da-fA-F]+)$",
    "float": r"^[-+]?((\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":int", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789"))


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML file and the line of each dotted key.

    Raises:
        ConfigError: If the file cannot be read, or does not contain a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a null byte in the name, or no text in UTF-8
        raise ConfigError(f"{str(path)!r}: cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        node, values = yaml.compose(text, Loader=_Loader), yaml.load(text, Loader=_Loader)  # a SafeLoader
    except Exception as error:  # as in _value
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: unreadable YAML: {_reason(error)}") from None
    if node is None:
        raise ConfigError(f"{path}, line 1: a config is a mapping of sections, and this file contains none")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}, line 1: a config is a mapping of sections (got {type(values).__name__})")
    lines: dict[str, int] = {}
    _collect_lines(path, node, [], lines)
    return values, lines


def _reason(error: Exception) -> str:
    reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
    return str(reason).partition("\n")[0] or type(error).__name__


def _collect_lines(path: Path, node: yaml.Node, above: list[str], lines: dict[str, int]) -> None:
    """Record the lines of a section's keys, not of values below them: an alias there may contain itself.

    Raises:
        ConfigError: If a key is given twice.
    """
    if section_of(above) is None or not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        here = [*above, str(key_node.value)]
        key, line = ".".join(here), key_node.start_mark.line + 1
        if key in lines and key_node.value != "<<":
            raise ConfigError(f"{path}, line {line}: {key} is given a second time (first in line {lines[key]})")
        lines[key] = line
        _collect_lines(path, value_node, here, lines)
