"""Writing text files and making folders."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from pyg_topomask.cache import replacing
from pyg_topomask.run.errors import RunError


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all; numbers that JSON lacks (NaN, infinity) become ``null``."""
    write_text(path, json.dumps(_as_json(values), indent=2, allow_nan=False) + "\n")


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def output_path(path: str | Path, what: str = "a folder") -> Path:
    """The path that ``--out`` gives, with ``~`` expanded.

    Raises:
        RunError: If it is empty or contains a null byte, which no path can, or is a folder and not a file.
    """
    if str(path) == "" or "\0" in str(path) or (what == "a file" and Path(path).expanduser().is_dir()):
        raise RunError(f"--out must name {what} (got {str(path)!r})")
    return Path(path).expanduser()


def make_folder(path: Path, purpose: str) -> None:
    """Make a folder and its parents, and check that files can be written to it.

    Raises:
        RunError: If they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise RunError(f"{purpose} {path} cannot be written to: {error.strerror or error}") from None
