"""Finding raw files, and storing the processed files in the cache folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch_geometric
from torch.utils.data import ConcatDataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.cache import building, cache_dir, locked
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.errors import MissingDataError, RunError
from pyg_topomask.run.output.files import make_folder
from pyg_topomask.run.task import PARTS, Parts, Task
from pyg_topomask.tensor_files import only_data, reason_of

Made = TypeVar("Made")


@dataclass
class LoadedDataset:
    """A data set as its class returns it, before features, encodings and other splits.

    Args:
        graphs: The graphs.
        task: What is predicted.
        parts: Indices of the training, validation and test graphs if the data set defines them. A single graph has
            masks instead.
        resample: Makes, from a seed, the transform with ``set_epoch`` that is applied each time a training graph is
            served.
    """

    graphs: Sequence[Data]
    task: Task
    parts: Parts | None = None
    resample: Callable[[int], BaseTransform] | None = None

    @property
    def is_one_graph(self) -> bool:
        """Whether the nodes of a single graph are the items that are split."""
        return self.task.level == "node" and self.parts is None and len(self.graphs) == 1

    def __len__(self) -> int:
        return len(self.graphs)


def joined(datasets: Sequence[Sequence[Data]]) -> tuple[Sequence[Data], Parts]:
    """Training, validation and test sets as one sequence, with the indices of each."""
    ends = torch.tensor([0, *(len(part) for part in datasets)]).cumsum(0).tolist()
    train, val, test = (torch.arange(start, end) for start, end in pairwise(ends))
    return ConcatDataset(datasets), (train, val, test)  # type: ignore[arg-type, return-value]


@dataclass(frozen=True)
class Raw:
    """The raw files of a data set.

    Args:
        family: Folder of its class below a data folder, such as ``TUDataset``.
        subfolder: Folder of the data set below that, and below the root of its class; empty if the class has a single
            data set.
        files: Required files and folders, below ``subfolder``.
    """

    family: str
    subfolder: str
    files: tuple[str, ...]

    @property
    def tops(self) -> list[str]:
        """The paths to link: the folders called ``raw``, and the first part of other paths."""
        found = set()
        for name in self.files:
            parts = Path(name).parts
            found.add("/".join(parts[: parts.index("raw") + 1] if "raw" in parts else parts[:1]))
        return sorted(found)

    def find(self, data: DatasetConfig) -> tuple[Path | None, list[str]]:
        """The first folder that contains all files, and a line for each folder that does not."""
        tried = []
        for origin, base in (("dataset.dir", data.dir), ("$TOPOMASK_DATA", os.environ.get("TOPOMASK_DATA"))):
            if not base:
                tried.append(f"{origin} is not set")
                continue
            root = Path(base).expanduser()
            for folder in (root / self.family / self.subfolder, root / self.subfolder):
                missing = [name for name in self.files if not (folder / name).exists()]
                if not missing:
                    return folder, tried
                if len(missing) < len(self.files) or (folder / Path(self.files[0]).parent).is_dir():
                    tried.append(f"{origin}: {folder} lacks {', '.join(Path(name).name for name in missing)}")
            if not any(line.startswith(f"{origin}:") for line in tried):
                where = (root / self.family / self.subfolder / self.files[0]).parent
                tried.append(f"{origin}: {where} does not exist")
        return None, tried

    def link(self, folder: Path, root: Path) -> None:
        """Link the files in ``folder`` into the root of the class, so that the class writes only to its root."""
        for name in self.tops:
            link = root / self.subfolder / name
            if link.exists():
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            target = (folder / name).resolve()
            try:
                link.symlink_to(target, target_is_directory=target.is_dir())
            except OSError:  # Windows without the permission to make links
                (shutil.copytree if target.is_dir() else shutil.copy)(target, link)


def from_raw(raw: Raw, data: DatasetConfig, build: Callable[[Path], Made], key: str = "") -> Made:
    """Build a data set from its raw files, processed once into the cache folder.

    Args:
        raw: The files.
        data: Gives the folder to search.
        build: Makes the data set, given its root; called again to load it from the cache.
        key: Settings that change the processed files.

    Raises:
        MissingDataError: If the files are neither found nor can be downloaded.
        RunError: If they are unreadable.
    """
    folder, tried = raw.find(data)
    name = "-".join(filter(None, [raw.subfolder or raw.family, key]))
    if folder is None:
        return cached(Path(raw.family) / f"{name}-downloaded", lambda root: _download(build, root, data.name, tried))
    digest = hashlib.sha256("\n".join(_stamp(raw, folder)).encode()).hexdigest()[:12]

    def build_beside(root: Path) -> Made:
        raw.link(folder, root)
        return build(root)

    return cached(Path(raw.family) / f"{name}-{digest}", build_beside)


def _stamp(raw: Raw, folder: Path) -> Iterator[str]:
    """Lines that change whenever the raw files do."""
    yield torch_geometric.__version__
    yield str(folder.resolve())
    for name in raw.tops:
        top = folder / name
        for path in [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file()):
            stat = path.stat()
            yield f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}"


def _download(build: Callable[[Path], Made], root: Path, name: str, tried: list[str]) -> Made:
    try:
        return build(root)
    except RunError:
        raise
    except Exception as error:  # of urllib, http, zipfile, socket: the files could not be downloaded
        lines = "\n  ".join([*tried, f"download: {type(error).__name__}: {error}"])
        raise MissingDataError(
            f"the raw files of {name} were neither found nor downloaded:\n  {lines}\n"
            "Put them into one of these folders, or set the environment variable TOPOMASK_DATA"
        ) from error


def from_parts(
    raw: Raw, data: DatasetConfig, build: Callable[[str, str], Sequence[Data]], task: Task, key: str = ""
) -> LoadedDataset:
    """:func:`from_raw` for a class that reads one part at a time, ``build(root, part)`` with a name in ``PARTS``."""
    graphs, parts = joined(from_raw(raw, data, lambda root: [build(str(root), split) for split in PARTS], key))
    return LoadedDataset(graphs, task, parts)


def cached(name: Path, build: Callable[[Path], Made]) -> Made:
    """Process in a temporary folder unless the cache contains the files, then load from the cache."""
    final = cache_dir() / name
    locks = cache_dir() / ".locks"
    with reading(name.name, f"Delete {final}, which is rebuilt; if that does not help, get the raw files again"):
        if not final.exists():
            make_folder(locks, "the cache folder")
            make_folder(final.parent, "the cache folder")
            with locked(locks / str(name).replace(os.sep, "-")):  # one process builds while the others wait
                if not final.exists():
                    with building(final) as folder:
                        build(folder)
        return build(final)


@contextlib.contextmanager
def reading(name: str, advice: str) -> Iterator[None]:
    """Let a library read files as data only; any error becomes a :class:`RunError`.

    What it prints goes to standard error, so that standard output has only the result of a command.

    Args:
        name: What is read, for messages.
        advice: What to do if it cannot be read, for messages.
    """
    try:
        with only_data(), contextlib.redirect_stdout(sys.stderr):
            yield
    except RunError:
        raise
    except Exception as error:  # invalid files raise many kinds of errors
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the cache folder {cache_dir()} cannot be written to: {error.strerror}") from error
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise RunError(f"{name} could not be read: {reason}. {advice}") from error


def need(package: str, why: str) -> Any:
    """Import an optional package.

    Raises:
        RunError: If it is missing; the message gives the command that installs it.
    """
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        source = {"sklearn": "scikit-learn"}.get(top, top)
        raise RunError(f"{why} needs {error.name or top}, which is not installed: pip install {source}") from error
