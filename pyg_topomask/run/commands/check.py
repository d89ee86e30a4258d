"""``topomask check``: validate configs and build their models, without data."""

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.check import check_config, notes_of
from pyg_topomask.run.graphgps.saved import checkpoint_of


def main(arguments: Namespace, rest: list[str]) -> int:
    """Check files, or folders of them, with ``key=value`` settings for all.

    Print a line for each valid file, then every note once with the number of its files, then the errors.

    Returns:
        0 if all are valid, else 1.
    """
    configs, overrides = _split_overrides(arguments.configs)
    files, failures, notes = _files(configs), dict[Path, str](), Counter[str]()
    for path in files:
        try:
            parsed, unused = check_config(path, overrides)
        except RunError as error:
            failures[path] = str(error)
            continue
        start = parsed.config
        note = f" (without {', '.join(unused)})" if unused else ""
        if start.pretrained.dir and checkpoint_of(start) is None:
            note += f" (model not tried: pretrained.dir {start.pretrained.dir} contains no run)"
        print(f"ok     {path}{note}")
        notes.update(notes_of(parsed))
    for note, count in notes.most_common():
        print(f"note   {note}" if len(files) == 1 else f"note   {count} of {len(files)}: {note}")
    for path, message in failures.items():
        print("\n       ".join([f"error  {path}", *message.splitlines()]))
    if len(files) > 1:
        first = f", the first in {next(iter(failures))}" if failures else ""
        print(f"{len(files)} configs: {len(files) - len(failures)} ok, {len(failures)} with errors{first}")
    return 1 if failures else 0


def _split_overrides(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate files and folders from ``key=value`` entries."""
    overrides = [token for token in tokens if "=" in token and not os.path.exists(token)]
    configs = [token for token in tokens if token not in overrides]
    if not configs:
        raise RunError("'check' needs a config file or folder")
    return configs, overrides


def _files(configs: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for name in configs:
        path, is_folder = Path(name), os.path.isdir(name)
        found = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml")) if is_folder else [path]
        if not found:
            raise RunError(f"{path}: no YAML files in this folder")
        files += found
    return files
