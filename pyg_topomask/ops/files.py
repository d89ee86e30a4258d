"""Cache files that are whole or absent, made by one of the processes that want them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is about to be made; the system lets go of it when a process dies.

    Where there are no such locks (Windows, some network file systems), all processes go ahead at once, which costs
    time and nothing else, since files are put in place whole.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.with_name(f".{path.name}.lock").open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file in the same folder, then put it in the place of ``path``.

    Call it under `locked`: what writers that were killed have left of the same file is removed.
    """
    prefix = f".{path.name}.part-"
    for left in path.parent.glob(f"{prefix}*"):
        if _abandoned(left, prefix):
            left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{prefix}{os.getpid()}-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _abandoned(path: Path, prefix: str) -> bool:
    """Whether the process that a temporary file is named after has ended on this machine."""
    try:
        os.kill(int(path.name.removeprefix(prefix).split("-")[0]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
