"""YAML text and command-line overrides to a :class:`Config`, each problem with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pyg_topomask.run.config.contradictions import contradictions
from pyg_topomask.run.config.ignored import ignored_keys
from pyg_topomask.run.config.schema import Config, add_mask_sections, all_keys, section_of
from pyg_topomask.run.errors import ConfigError, did_you_mean, nearest


class _Loader(yaml.SafeLoader):
    """PyYAML reads ``1e-5`` as text; YAML 1.2 and GraphGPS's users read a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass
class ParsedConfig:
    """A config and its origin.

    Args:
        config: The config.
        name: Its name, that of the folder of its runs: that of the file, and ``name_tag``.
        file: The file, where there is one.
        lines: The line of each key in the file.
        overridden: The keys that the command line gave.
        ignored: The keys given that the runner does not read.
    """

    config: Config
    name: str
    file: str | None = None
    lines: dict[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()

    def refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        """Raise a :class:`ConfigError` for pairs (key, what is wrong), if there are any."""
        lines = [self.describe(key, message) for key, message in problems]
        if lines:
            raise ConfigError("\n".join(lines))

    def describe(self, key: str, message: str) -> str:
        """One line: where the key was set, its name, and the message."""
        if any(name == key or (name.startswith(f"{key}.") and key not in self.lines) for name in self.overridden):
            return f"command line: {key}: {message}"
        line, parent = self.lines.get(key), key
        while line is None and "." in parent:
            parent = parent.rsplit(".", 1)[0]
            line = self.lines.get(parent)
        place = self.file if line is None or self.file is None else f"{self.file}, line {line}"
        return f"{place}: {key}: {message}" if place else f"{key}: {message}"


def load(
    source: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str] = (), name: str = "config"
) -> ParsedConfig:
    """Read a config from a file, a nested mapping or a :class:`Config`, apply overrides and validate it.

    Raises:
        ConfigError: If the text is no YAML, a key is unknown, or values are wrong or contradict each other.
    """
    add_mask_sections()
    lines: dict[str, int] = {}
    file = None
    if isinstance(source, Config):
        values = source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        values = _copy(source)
    else:
        file, name = str(source), Path(source).stem
        values, lines = read_yaml(Path(source))
    overridden = _override(values, overrides)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        draft = ParsedConfig(Config.model_construct(), name, file, lines, overridden)
        draft.refuse(_explain(item) for item in error.errors())
        raise
    name += f"-{config.name_tag}" if config.name_tag else ""
    parsed = ParsedConfig(config, name, file, lines, overridden, tuple(ignored_keys(values)))
    parsed.refuse(contradictions(config))
    return parsed


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML file and the line of each dotted key."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader: plain data only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: unreadable YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: unreadable YAML: {error}") from None
    if node is None:
        raise ConfigError(f"{path}, line 1: a config is a mapping of sections, and this file holds none")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}, line 1: a config is a mapping of sections (got {type(values).__name__})")
    lines: dict[str, int] = {}
    try:
        _collect_lines(path, node, "", lines)
    except RecursionError:
        raise ConfigError(f"{path}: an alias (*name) stands inside what it repeats") from None
    return _fill_empty_sections(values, []), lines


def _fill_empty_sections(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """A section without a key under it, which YAML reads as null, is one at its defaults."""
    filled = {}
    for key, value in values.items():
        here = [*path, str(key)]
        if section_of(here) is not None:
            value = {} if value is None else value
            value = _fill_empty_sections(value, here) if isinstance(value, dict) else value
        filled[key] = value
    return filled


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _collect_lines(path: Path, node: yaml.Node, prefix: str, lines: dict[str, int]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        line = key_node.start_mark.line + 1
        if key in lines and key_node.value != "<<":
            raise ConfigError(f"{path}, line {line}: {key} is given a second time (first in line {lines[key]})")
        lines[key] = line
        _collect_lines(path, value_node, f"{key}.", lines)


def _override(values: dict[str, Any], overrides: Sequence[str]) -> frozenset[str]:
    """Apply ``key=value`` and ``key value`` to nested values, in place; return the keys."""
    keys, rest = [], list(overrides)
    while rest:
        key, equals, text = rest.pop(0).partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"command line: {key}: no value given; write {key}=VALUE or {key} VALUE")
            text = rest.pop(0)
        try:
            value = yaml.load(text, Loader=_Loader)  # a SafeLoader: plain data only
        except yaml.YAMLError:
            raise ConfigError(f"command line: {key}: {text!r} is no YAML value") from None
        *sections, name = key.split(".")
        place: Any = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"command line: {key}: {section!r} is no section")
        place[name] = value
        keys.append(key)
    return frozenset(keys)


def _explain(error: Any) -> tuple[str, str]:
    """(key, message) of one pydantic error."""
    path = [part for part in error["loc"] if isinstance(part, str)]
    key, kind, given = ".".join(_known_path(path)), error["type"], error.get("input")
    if kind == "fixed_key":
        return ".".join(path), f"{error['msg']} (got {given!r})"
    if kind == "extra_forbidden":
        return key, "unknown key." + _suggest_key(key)
    if kind == "missing":
        return key, "this key is required"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        if not choices:
            return key, f"must be {error['ctx']['expected'].lower()} (got {given!r})"
        return key, f"must be one of {', '.join(choices)} (got {given!r})." + did_you_mean(str(given), choices)
    message = error["msg"].removeprefix("Value error, ")
    given = f" (got {given!r})" if len(repr(given)) <= 80 else ""
    first = message[0] if message[1:2].isupper() else message[0].lower()  # GCN stays as it is
    return key, f"{first}{message[1:]}{given}"


def _known_path(path: list[str]) -> list[str]:
    """Down to the key, without the tags that pydantic appends for the members of a union."""
    depth = 0
    while depth < len(path) and section_of(path[:depth]) is not None:
        depth += 1
    return path[:depth]


_OTHER_NAMES = {
    "lr": "optim.base_lr",
    "learning_rate": "optim.base_lr",
    "epochs": "optim.max_epoch",
    "num_epochs": "optim.max_epoch",
    "heads": "gt.n_heads",
    "num_heads": "gt.n_heads",
    "num_layers": "gt.layers",
    "hidden_dim": "gt.dim_hidden",
    "hidden_channels": "gt.dim_hidden",
}
"""Names that other libraries use -> our keys."""


def _suggest_key(key: str) -> str:
    """The key that other libraries call so, else the nearest of the same section, of that name, or of all."""
    keys, (section, _, name) = all_keys(), key.rpartition(".")
    if name in _OTHER_NAMES:
        return f" Did you mean {_OTHER_NAMES[name]!r}?"
    siblings = {k.removeprefix(f"{section}."): k for k in keys if section and k.startswith(f"{section}.")}
    found = siblings.get(nearest(name, siblings) or "")
    found = found or next((k for k in keys if k.rsplit(".", 1)[-1] == name), None)
    found = found or nearest(key, [*keys, *(k for k in Config.model_fields if section_of([k]))])
    return f" Did you mean {found!r}?" if found else ""
