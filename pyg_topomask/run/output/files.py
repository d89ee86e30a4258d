"""Files that are either whole or absent: a killed run leaves no partial one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyg_topomask.run.errors import RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that takes its place at the end, unless the body fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def make_folder(path: Path, purpose: str) -> None:
    """Make a folder and its parents, and see that it can be written to.

    Raises:
        RunError: If it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise RunError(f"{purpose} {path} cannot be written to: {error.strerror or error}") from None


def build_folder(final: Path, build: Callable[[Path], object]) -> None:
    """Let ``build`` fill a temporary folder beside ``final``, then rename it; nothing happens if ``final`` is there.

    Of several processes that build the same folder, the first to finish wins.
    """
    if final.exists():
        return
    make_folder(final.parent, "the cache folder")
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
    try:
        build(temporary)
        try:
            os.replace(temporary, final)
        except OSError:
            if not final.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
