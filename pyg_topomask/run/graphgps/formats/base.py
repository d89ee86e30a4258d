"""Finding raw files, and storing the processed files in the cache folder."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch_geometric
from torch_geometric.data import Data

from pyg_topomask.cache import building, cache_dir, locked
from pyg_topomask.fingerprint import stable_hash
from pyg_topomask.run.data.source import LoadedDataset, joined
from pyg_topomask.run.errors import MissingDataError, RunError
from pyg_topomask.run.files import make_folder
from pyg_topomask.run.task import PARTS, Task
from pyg_topomask.tensor_files import UnreadableFileError, only_data, reason_of

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.config.dataset import DatasetConfig

Made = TypeVar("Made")


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
        """The files and folders directly below ``subfolder``, such as ``raw``."""
        return sorted({Path(name).parts[0] for name in self.files})

    def find(self, data: "DatasetConfig") -> tuple[Path | None, list[str]]:
        """The first folder that contains all files, and a line for each folder that does not."""
        tried = []
        for origin, base in (("dataset.dir", data.dir), ("$TOPOMASK_DATA", os.environ.get("TOPOMASK_DATA"))):
            if not base:
                tried.append(f"{origin} is not set")
                continue
            root = Path(base).expanduser()
            for folder in (root / self.family / self.subfolder, root / self.subfolder):
                missing = [Path(name).name for name in self.files if not (folder / name).exists()]
                if not missing:
                    return folder, tried
                found = f"lacks {', '.join(missing)}" if folder.is_dir() else "does not exist"
                tried.append(f"{origin}: {folder} {found}")
        return None, tried

    def link(self, folder: Path, root: Path) -> None:
        """Link the files in ``folder`` into the root of the class, so that the class writes only to its root."""
        for name in self.tops:
            link = root / self.subfolder / name
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((folder / name).resolve())

    def stamp(self, folder: Path) -> str:
        """A hash that changes whenever the files do."""
        paths = [path for name in self.tops for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
        files = {path.relative_to(folder): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
        return stable_hash(torch_geometric.__version__, folder.resolve(), files)[:12]


def from_raw(raw: Raw, data: "DatasetConfig", build: Callable[[str], Made], key: str = "") -> Made:
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

    def build_beside(root: str) -> Made:
        if folder is not None:
            raw.link(folder, Path(root))
            return build(root)
        try:
            return build(root)
        except Exception as error:  # of urllib, http, zipfile, socket: the files could not be downloaded
            lines = "\n  ".join([*tried, f"download: {type(error).__name__}: {error}"])
            raise MissingDataError(
                f"the raw files of {data.name} ({data.format}) were neither found nor downloaded:\n  {lines}\n"
                f"Put {', '.join(raw.files)} into {Path('DIR', raw.family, raw.subfolder)}, and set TOPOMASK_DATA=DIR"
            ) from error

    names = [raw.subfolder or raw.family, key, "downloaded" if folder is None else raw.stamp(folder)]
    return cached(Path(raw.family, "-".join(filter(None, names))), build_beside)


def from_parts(
    raw: Raw, data: "DatasetConfig", task: Task, build: Callable[[str, str], Sequence[Data]], key: str = ""
) -> LoadedDataset:
    """:func:`from_raw` for a class that reads one part at a time, ``build(root, part)`` with a name in ``PARTS``."""
    graphs, parts = joined(from_raw(raw, data, lambda root: [build(root, split) for split in PARTS], key))
    return LoadedDataset(graphs, task, parts)


def cached(name: Path, build: Callable[[str], Made]) -> Made:
    """Process in a temporary folder unless the cache contains the files, then load from the cache."""
    final = cache_dir() / name
    with reading(name.name, f"Delete {final}, which is rebuilt; if that does not help, get the raw files again"):
        make_folder(final.parent, "the cache folder")
        with locked(final):  # one process builds while the others wait
            if not final.exists():
                with building(final) as folder:
                    build(str(folder))
        return build(str(final))


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
    except UnreadableFileError as error:
        raise RunError(f"{error}. {advice}") from error
    except Exception as error:  # invalid files raise many kinds of errors
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the cache folder {cache_dir()} cannot be written to: {error.strerror}") from error
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise RunError(f"{name} could not be read: {reason}. {advice}") from error
