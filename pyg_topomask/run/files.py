"""Writing files and making folders."""

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyg_topomask.cache import replacing
from pyg_topomask.run.errors import RunError
from pyg_topomask.viz import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all; numbers that JSON lacks (NaN, infinity) become ``null``."""
    finite = json.loads(json.dumps(values), parse_constant=lambda name: None)
    write_text(path, json.dumps(finite, indent=2) + "\n")


def output_path(path: str | Path, what: str = "a file") -> Path:
    """The path that ``--out`` gives, with ``~`` expanded.

    Raises:
        RunError: If it is empty, or is a folder (also one that does not exist, such as ``new/``) and not a file.
    """
    is_folder = str(path).endswith(("/", os.sep)) or Path(path).expanduser().is_dir()
    if str(path) == "" or (what == "a file" and is_folder):
        raise RunError(f"--out must name {what} (got {str(path)!r})")
    return Path(path).expanduser()


def write_output(out: Path, content: "str | Figure") -> str:
    """Write a command's text or picture, and return the line that says so.

    Raises:
        RunError: If a picture cannot be written, such as in a format that matplotlib does not have.
    """
    if isinstance(content, str):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, content)
    else:
        try:
            save_figure(content, out)
        except (OSError, ValueError) as error:
            raise RunError(f"--out: {out} cannot be written: {error}") from None
    return f"wrote {out}"


def make_folder(path: Path, purpose: str) -> None:
    """Make a folder and its parents, and check that files can be written to it.

    Raises:
        RunError: If they cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except (OSError, ValueError) as error:  # ValueError: a null byte, or half a character, in the name
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{purpose} {path} cannot be written to: {reason}") from None
