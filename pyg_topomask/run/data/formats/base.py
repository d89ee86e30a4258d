"""Where raw files are looked for, and how what is made of them is kept in the cache folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch_geometric
from torch import Tensor
from torch.utils.data import ConcatDataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.cache import building, cache_dir, locked
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.output.files import make_folder
from pyg_topomask.run.task import Task
from pyg_topomask.tensor_files import only_data, reason_of

Made = TypeVar("Made")
Parts = tuple[Tensor, Tensor, Tensor]


@dataclass
class LoadedDataset:
    """A data set as it comes from its class, before features, encodings and splits of our own.

    Args:
        graphs: The graphs.
        task: What is predicted.
        parts: Indices of the training, validation and test graphs that the data set itself defines, where it does. A
            single graph carries masks instead.
        resample: Applied to a training graph each time it is served, with ``set_epoch``.
    """

    graphs: Sequence[Data]
    task: Task
    parts: Parts | None = None
    resample: BaseTransform | None = None

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
        family: Folder of its class below a data folder, ``TUDataset``.
        place: Folder of the data set below that, and below the root that its class is given; empty where the class
            has a single data set.
        files: Files and folders that must be there, below ``place``.
    """

    family: str
    place: str
    files: tuple[str, ...]

    @property
    def tops(self) -> list[str]:
        """What is linked: the folders called ``raw``, and the first part of other paths."""
        found = set()
        for name in self.files:
            parts = Path(name).parts
            found.add("/".join(parts[: parts.index("raw") + 1] if "raw" in parts else parts[:1]))
        return sorted(found)

    def find(self, data: DatasetConfig) -> tuple[Path | None, list[str]]:
        """The first folder that holds all, and a line on each folder tried."""
        tried = []
        for origin, base in (("dataset.dir", data.dir), ("$TOPOMASK_DATA", os.environ.get("TOPOMASK_DATA"))):
            if not base:
                tried.append(f"{origin} is not set")
                continue
            root = Path(base).expanduser()
            for folder in (root / self.family / self.place, root / self.place):
                missing = [name for name in self.files if not (folder / name).exists()]
                if not missing:
                    return folder, tried
                if len(missing) < len(self.files) or (folder / Path(self.files[0]).parent).is_dir():
                    tried.append(f"{origin}: {folder} lacks {', '.join(Path(name).name for name in missing)}")
            if not any(line.startswith(f"{origin}:") for line in tried):
                where = (root / self.family / self.place / self.files[0]).parent
                tried.append(f"{origin}: {where} is not there")
        return None, tried

    def link(self, folder: Path, root: Path) -> None:
        """Put links to what is found in ``folder`` where the class looks for it; the class writes beside them."""
        for name in self.tops:
            link = root / self.place / name
            if link.exists():
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            target = (folder / name).resolve()
            try:
                link.symlink_to(target, target_is_directory=target.is_dir())
            except OSError:  # Windows without the right to make links
                (shutil.copytree if target.is_dir() else shutil.copy)(target, link)


def from_raw(
    raw: Raw, data: DatasetConfig, build: Callable[[Path], Made], key: str = "", download: bool = True
) -> Made:
    """What ``build`` makes of the raw files, processed once into the cache folder.

    Args:
        raw: The files.
        data: Says where to look.
        build: Makes the data set, given its root; called again to load it from the cache.
        key: Settings that change what is processed.
        download: Whether ``build`` may be left to download them.

    Raises:
        RunError: If the files are neither found nor can be downloaded, or are unreadable.
    """
    folder, tried = raw.find(data)
    name = "-".join(filter(None, [raw.place or raw.family, key]))
    if folder is None:
        if not download:
            raise RunError(_not_found(data.name, tried))
        return cached(Path(raw.family) / f"{name}-downloaded", lambda root: _download(build, root, data.name, tried))
    digest = hashlib.sha256("\n".join(_stamp(raw, folder)).encode()).hexdigest()[:12]

    def build_beside(root: Path) -> Made:
        raw.link(folder, root)
        return build(root)

    return cached(Path(raw.family) / f"{name}-{digest}", build_beside)


def _stamp(raw: Raw, folder: Path) -> Iterator[str]:
    """What tells one state of the raw files from another."""
    yield torch_geometric.__version__
    yield str(folder.resolve())
    for name in raw.tops:
        top = folder / name
        for path in [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file()):
            stat = path.stat()
            yield f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}"


def _not_found(name: str, tried: Sequence[str]) -> str:
    lines = "\n  ".join(tried)
    return f"the raw files of {name} were neither found nor downloaded:\n  {lines}"


def _download(build: Callable[[Path], Made], root: Path, name: str, tried: list[str]) -> Made:
    try:
        return build(root)
    except RunError:
        raise
    except Exception as error:  # urllib, http, zipfile, socket: all mean that the files could not be had
        raise RunError(_not_found(name, [*tried, f"download: {type(error).__name__}: {error}"])) from error


def cached(place: Path, build: Callable[[Path], Made]) -> Made:
    """Process in a temporary folder unless that was done before, then load from the cache."""
    final = cache_dir() / place
    locks = cache_dir() / ".locks"
    with reading(place.name, f"Delete {final}, which is made again; if that does not help, get the raw files anew"):
        if not final.exists():
            make_folder(locks, "the cache folder")
            make_folder(final.parent, "the cache folder")
            with locked(locks / str(place).replace(os.sep, "-")):  # of several processes one builds, the others wait
                if not final.exists():
                    with building(final) as folder:
                        build(folder)
        return build(final)


@contextlib.contextmanager
def reading(name: str, advice: str) -> Iterator[None]:
    """Let a library read files, as data only and without its messages; whatever fails becomes a :class:`RunError`.

    Args:
        name: What is read.
        advice: What to do where it cannot be read.
    """
    silent = io.StringIO()
    try:
        with only_data(), contextlib.redirect_stderr(silent), contextlib.redirect_stdout(silent):
            yield
    except RunError:
        raise
    except Exception as error:  # a library meets junk with errors of many kinds
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the cache folder {cache_dir()} cannot be written to: {error.strerror}") from error
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise RunError(f"{name} could not be read: {reason}. {advice}") from error


def need(package: str, why: str) -> Any:
    """Import an optional package.

    Raises:
        RunError: With the command that installs it, if it is missing.
    """
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        raise RunError(f"{why} needs {error.name or top}, which is not installed: pip install {top}") from error
