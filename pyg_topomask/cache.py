"""The cache folder, and files and folders that are either complete or absent, however a process ends."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path


def cache_dir() -> Path:
    """``$TOPOMASK_CACHE`` if set, else ``pyg_topomask`` in the user's cache folder.

    Raises:
        FileNotFoundError: If the folder begins with a home folder, such as ``~``, that the system does not know.
    """
    named = os.environ.get("TOPOMASK_CACHE")
    if named:
        return _expanded(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(base) / "pyg_topomask"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no such home folder", path) from None


def private_folder(path: Path) -> Path:
    """Create a folder for files that will be executed; refuse it if someone else could put files there.

    The folder must belong to this user, and nobody else may be able to write to it. The folders above it must belong to
    this user or to root, and nobody outside the user's own group may be able to write to them unless they are sticky,
    as ``/tmp`` is. (Windows has other permissions, which are not checked; a user's profile is private there.)

    Returns:
        The folder, with symbolic links resolved.

    Raises:
        PermissionError: If someone else could change the folder.
        OSError: If the folder cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.resolve()
    for folder in (found, *found.parents):
        refuse_foreign(folder, strict=folder == found)
    return found


def refuse_foreign(path: Path, strict: bool = False) -> None:
    """Refuse a file or folder with code that someone else could change, by the rule of `private_folder`.

    Args:
        path: The file or folder.
        strict: Whether root and the user's own group count as someone else.

    Raises:
        PermissionError: If someone else could change it.
    """
    if os.name == "posix" and not _only_ours(path, strict):
        owner, mode = path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)
        raise PermissionError(
            f"others than user {os.geteuid()} can change {path} (owner {owner}, mode {mode:o}), whose code would be "
            "executed"
        )


def _only_ours(path: Path, strict: bool) -> bool:
    found, user = path.stat(), os.geteuid()
    if strict:
        return found.st_uid == user and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    open_to = found.st_mode & (stat.S_IWOTH if found.st_gid == os.getegid() else stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (user, 0) and (not open_to or bool(found.st_mode & stat.S_ISVTX))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file in the folder of ``path`` that replaces ``path`` if the body succeeds.

    ``path`` has either the old or the new content, never a part of it, even if the process is killed. The new file's
    name has the suffix of ``path``. Leftovers of killed writers of the same path on this machine are removed.
    """
    temporary = _temporary(path)
    temporary.open("xb").close()
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # errors of writing, such as a full disk, have no file name
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def building(path: Path) -> Iterator[Path]:
    """Yield a new, empty folder next to ``path`` that becomes ``path`` if the body succeeds.

    If several processes build the same folder, the first one to finish wins.
    """
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        try:
            os.replace(temporary, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder that will be created; the system releases it when the process dies.

    If such locks are not available (Windows, some network file systems, a lock file of another user), all processes go
    ahead in parallel. This only costs time, since files and folders become visible only when they are complete.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDONLY | os.O_CREAT, 0o666)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that only this process may write; the system releases it when the process dies.

    The lock is not shared with processes that this one forks, such as the workers of a loader, which may outlive it. If
    such locks are not available (Windows, some network file systems, a read-only folder), nothing is refused.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, handle)
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink == 0:
                raise BlockingIOError(f"another process has just removed {lock}")
            stack.callback(lock.unlink, missing_ok=True)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def _temporary(path: Path) -> Path:
    """A name that no other writer uses. It contains the machine and the process, so that leftovers can be removed."""
    prefix = f".{path.name}.part-{platform.node()}-"
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and _has_ended(name.removeprefix(prefix).partition("-")[0]):
            left = path.with_name(name)
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:8]}{path.suffix}")


def _has_ended(pid: str) -> bool:
    if os.name != "posix":  # on other systems, signal 0 is more than a check
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
