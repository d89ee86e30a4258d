"""The cache folder, and files and folders that are either complete or absent, however a process ends."""

import contextlib
import errno
import os
import platform
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

__all__ = ["building", "cache_dir", "locked", "replacing"]


def cache_dir() -> Path:
    """``$TOPOMASK_CACHE`` if set, else ``pyg_topomask`` in ``$XDG_CACHE_HOME``, by default ``~/.cache``.

    Raises:
        FileNotFoundError: If the folder begins with a home folder, such as ``~``, that the system does not know.
    """
    named = os.environ.get("TOPOMASK_CACHE")
    path = Path(named or os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no such home folder", str(path)) from None
    return path if named else path / "pyg_topomask"


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
    if os.name != "posix":
        return
    found, user = path.stat(), os.geteuid()
    owners = (user,) if strict else (user, 0)
    own_group = not strict and found.st_gid == os.getegid()
    writable = found.st_mode & (stat.S_IWOTH if own_group else stat.S_IWGRP | stat.S_IWOTH)
    sticky = not strict and found.st_mode & stat.S_ISVTX
    if found.st_uid not in owners or (writable and not sticky):
        raise PermissionError(
            f"others than user {user} can change {path} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}), "
            "whose code would be executed"
        )


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
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file or folder; the system releases it when the process dies.

    If such locks are not available (Windows, some network file systems, a lock file of another user), all processes go
    ahead in parallel. This only costs time, since files and folders become visible only when they are complete.

    Args:
        path: The file or folder, which need not exist.
        wait: Whether to wait for another thread or process that holds the lock. Otherwise, threads share the lock, but
            processes that this one forks do not: workers of a loader may outlive it. The lock file then goes with the
            lock. Both kinds ignore each other.

    Raises:
        BlockingIOError: If another process holds the lock, and ``wait`` is false.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            lock = path.with_name(f".{path.name}.lock")
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, handle)
            if wait:
                fcntl.flock(handle, fcntl.LOCK_EX)
            else:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not (lock.exists() and os.path.samestat(os.fstat(handle), lock.stat())):
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
    except OSError as error:  # a process of another user may not be signalled
        return isinstance(error, ProcessLookupError)
    return False
