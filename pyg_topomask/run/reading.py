"""YAML text and command-line overrides to a :class:`Config`, each problem with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pyg_topomask.run.config import Config, contradictions
from pyg_topomask.run.errors import ConfigError, did_you_mean, nearest


class _Loader(yaml.SafeLoader):
    """PyYAML reads ``1e-5`` as text; YAML 1.2 and GraphGPS's users read a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass
class Loaded:
    """A config with what is known of its origin: its name, the file, the line of each key, the keys overridden."""

    config: Config
    name: str
    file: str | None = None
    lines: dict[str, int] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()

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
) -> Loaded:
    """Read a config from a file, a nested mapping or a :class:`Config`, apply overrides and validate it.

    Raises:
        ConfigError: If the text is no YAML, a key is unknown, or values are wrong or contradict each other.
    """
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
        draft = Loaded(Config.model_construct(), name, file, lines, overridden)
        draft.refuse(_explain(item) for item in error.errors())
        raise
    loaded = Loaded(config, name + (f"-{config.name_tag}" if config.name_tag else ""), file, lines, overridden)
    loaded.refuse(contradictions(config))
    return loaded


def _copy(values: Any) -> Any:
    return {key: _copy(value) for key, value in values.items()} if isinstance(values, Mapping) else values


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
    if node is None or not isinstance(values, dict):
        raise ConfigError(f"{path}, line 1: a config is a mapping of sections (got {type(values).__name__})")
    lines: dict[str, int] = {}
    try:
        _collect_lines(path, node, "", lines)
    except RecursionError:
        raise ConfigError(f"{path}: an alias (*name) stands inside what it repeats") from None
    return _fill_sections(values), lines


def _fill_sections(values: dict[str, Any], model: type[BaseModel] = Config) -> dict[str, Any]:
    """Empty mappings for sections that are named and hold nothing."""
    filled = dict(values)
    for key, value in values.items():
        section = _section(key, model)
        if section is not None and (value is None or isinstance(value, dict)):
            filled[key] = _fill_sections(value or {}, section)
    return filled


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
        target = values
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"command line: {key}: {section!r} is no section")
        target[name] = value
        keys.append(key)
    return frozenset(keys)


def _explain(error: Any) -> tuple[str, str]:
    """(key, message) of one pydantic error."""
    path = [part for part in error["loc"] if isinstance(part, str)]
    key, kind, given = ".".join(_known_path(path)), error["type"], error.get("input")
    if kind == "extra_forbidden":
        return key, "unknown key." + _suggest_key(key)
    if kind == "missing":
        return key, "this key is required"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return key, f"must be one of {', '.join(choices)} (got {given!r})." + did_you_mean(str(given), choices)
    message = error["msg"].removeprefix("Value error, ")
    return key, f"{message[0].lower()}{message[1:]} (got {given!r})"


def _known_path(path: list[str]) -> list[str]:
    """Without the tags that pydantic appends for the members of a union."""
    model: type[BaseModel] = Config
    for length, name in enumerate(path, start=1):
        section = _section(name, model)
        if section is None:
            return path[:length]
        model = section
    return path


def _section(name: object, model: type[BaseModel] = Config) -> type[BaseModel] | None:
    info = model.model_fields.get(str(name))
    kind = info.annotation if info else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def all_keys(model: type[BaseModel] = Config) -> list[str]:
    """Every key of the schema, with its section."""
    keys = []
    for name in model.model_fields:
        section = _section(name, model)
        keys += [f"{name}.{key}" for key in all_keys(section)] if section else [name]
    return keys


def _suggest_key(key: str) -> str:
    """The nearest key of the same section, else the same name in another section, else the nearest of all."""
    keys, (section, _, name) = all_keys(), key.rpartition(".")
    siblings = {k.rsplit(".", 1)[1]: k for k in keys if section and k.rpartition(".")[0] == section}
    found = siblings.get(nearest(name, siblings) or "")
    found = found or next((k for k in keys if k.rsplit(".", 1)[-1] == name), None)
    found = found or nearest(key, [*keys, *(k for k in Config.model_fields if _section(k))])
    return f" Did you mean {found!r}?" if found else ""
