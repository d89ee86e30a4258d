"""Importing a user's modules, which register attentions, masks and more."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pyg_topomask.run.errors import RunError


def import_modules(names: Sequence[str]) -> None:
    """Import a user's modules, which may be in the current folder."""
    if names and "" not in sys.path:
        sys.path.insert(0, "")
    for name in names:
        if not _is_name(name) or name.endswith(".py"):
            message = f"--import must give the name of a module, such as own_module or package.module (got {name!r})"
            plain = name.removesuffix(".py").replace("/", ".")
            raise RunError(message + (f". Did you mean {plain!r}?" if plain != name and _is_name(plain) else ""))
        try:
            import_module(name)
        except Exception as error:  # a user's module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
                reason = "no such module is installed or in the current folder"
            else:
                reason = _reason_in_module(error)
            raise RunError(f"--import {name}: {reason}") from error


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _reason_in_module(error: Exception) -> str:
    """One line with the error of an import and the line of the imported module that raised it."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):  # its text names file and line
        return text
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without the caller of import_module
    own = [frame for frame in frames if "importlib" not in frame.filename]
    return f"{text} ({Path(own[0].filename).name}, line {own[0].lineno})" if own else text
