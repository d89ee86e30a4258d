"""Read YAML as plain values and the line of each key; any invalid file gives a message of one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pyg_topomask.run.config.schema import section_of
from pyg_topomask.run.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Reads ``1e-5`` as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_value(text: str) -> Any:
    """The value of a YAML text, as plain data.

    Raises:
        ValueError: If the text is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except Exception as error:  # invalid scalars, such as the date 2024-13-45, raise many kinds of errors
        raise ValueError(_reason(error)) from None


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
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader: plain data only
    except Exception as error:  # as above
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
    if isinstance(error, RecursionError):
        return "brackets or sections are nested too deeply"
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
