"""The C++ sources of this folder, compiled once for this machine and stored where only the user can write."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyg_topomask.cache import cache_dir, locked, private_folder, refuse_foreign, replacing
from pyg_topomask.ops.native import sources
from pyg_topomask.typing import PerformanceWarning


def load(name: str) -> ctypes.CDLL | str:
    """The library of the sources in ``native/<name>/``, or the reason why there is none.

    If the package was installed from a wheel that contains it for this kind of machine, that one is taken. Otherwise,
    it is compiled at the first use, for this machine's vector instructions, and kept in the cache folder. The result is
    remembered for the process. ``$CXX`` sets the compiler, perhaps with flags, and is always used if it is set;
    otherwise ``c++``, ``g++`` or ``clang++`` is used. ``TOPOMASK_NATIVE=0`` switches all compiled code off.

    Warns:
        PerformanceWarning: Once, if there is a compiler, but no library, or if the wheel's library is incomplete.

    Args:
        name: Folder of the sources, a key of `sources.LIBRARIES`.
    """
    if os.environ.get("TOPOMASK_NATIVE") == "0":
        return "TOPOMASK_NATIVE=0 switches compiled code off"
    return _load(name)


def refuses(name: str, *tensors: Tensor | None) -> str | None:
    """Why the functions of a library cannot compute with these tensors; :obj:`None` if they can.

    This is for functions of float32 and float64 on CPU whose tensors have the same dtype.
    """
    given = [x for x in tensors if x is not None]
    dtypes = {x.dtype for x in given}
    if len(dtypes) > 1 or given[0].dtype not in (torch.float32, torch.float64):
        return f"it computes in float32 or float64 (got {', '.join(map(str, dtypes))})"
    others = [x.device for x in given if x.device.type != "cpu"]
    return refuses_device(name, others[0] if others else given[0].device)


def refuses_device(name: str, device: torch.device) -> str | None:
    """Why the custom operators of a library cannot serve tensors on a device; :obj:`None` if they can."""
    if is_transformed():
        return "transforms of torch.func have no rules for it"
    if device.type != "cpu":
        return f"it runs on CPU only (got {device})"
    return missing(name)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward mode is active: compiled code has no rules for them."""
    return forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def is_traced() -> bool:
    """Whether calls are recorded, so that only operators of torch are seen."""
    return bool(torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state())


@torch.compiler.assume_constant_result
def missing(name: str) -> str | None:
    """Why there is no library of that name; :obj:`None` if there is one. Compiled code asks once."""
    library = load(name)
    return library if isinstance(library, str) else None


def refuse_failure(code: int, what: str) -> None:
    """Raise the error that a compiled function returned, whose codes are in ``parallel.h``.

    Raises:
        MemoryError: If memory is short (−1).
        RuntimeError: If the code is any other number except 0.
    """
    if code == -1:
        raise MemoryError(f"not enough memory for {what}")
    if code:
        raise RuntimeError(f"compiled code failed at {what}; this is a bug: set TOPOMASK_NATIVE=0 to avoid it")


def num_threads(work: int, per_thread: int) -> int:
    """Number of threads for some work, at most torch's, each with at least ``per_thread``."""
    return max(min(torch.get_num_threads(), work // per_thread), 1)


def library_folder() -> Path:
    """Folder of this user's compiled libraries."""
    return Path(os.path.abspath(cache_dir())) / f"native-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"


@lru_cache
def _load(name: str) -> ctypes.CDLL | str:
    folder, named = library_folder(), os.environ.get("CXX")
    instructions = sources.instructions(torch.backends.cpu.get_cpu_capability())
    shipped = None if named else _open_shipped(name, instructions)
    if shipped is not None:
        return shipped
    try:
        program, *own_flags = shlex.split(named or "") or [""]
    except ValueError as error:
        return _without_library(f"$CXX cannot be read as a command ({error}): {named}")
    choices = [program] if program else sources.COMPILERS
    compiler = next(filter(None, map(shutil.which, choices)), None)
    if compiler is None:
        return f"there is no C++ compiler: neither {' nor '.join(choices)} is on the path"
    command = [compiler, *own_flags, *sources.flags(name, instructions)]
    try:
        library = _find_or_compile(name, command, private_folder(folder))
    except OSError as error:
        reason = f"the compiled library cannot be kept in {folder}: {error}; set TOPOMASK_CACHE to a folder of your own"
        return _without_library(reason)
    return _without_library(library) if isinstance(library, str) else library


def _open_shipped(name: str, instructions: str) -> ctypes.CDLL | None:
    """The library of the wheel, unless it lacks a function that the sources have."""
    library = _open(sources.SHIPPED, sources.shipped_stem(name, instructions))
    missing = [] if library is None else [entry for entry in sources.entries(name) if not hasattr(library, entry)]
    if library is None or not missing:
        return library
    reason = f"lacks {', '.join(missing)} and is not used; install the package again, or build its wheel again"
    warnings.warn(f"the installed library {library._name} {reason}", PerformanceWarning, stacklevel=4)
    return None


def _without_library(reason: str) -> str:
    warnings.warn(f"plain torch is used instead of compiled code: {reason}", PerformanceWarning, stacklevel=4)
    return reason


def _find_or_compile(name: str, command: list[str], folder: Path) -> ctypes.CDLL | str:
    """The library, or the reason why there is none. Raises OSError if it cannot be stored."""
    made_by = [os.path.realpath(command[0]), str(os.stat(command[0]).st_mtime_ns), *command[1:]]
    stem = f"{name}_cpu-{sources.fingerprint(name, *made_by)}"
    with locked(folder / "compile"):  # one process compiles, the others wait for it
        library = _open(folder, stem, refuse_foreign)
        if library is None:
            failure = _compile([*command, str(sources.source(name))], folder, stem)
            if failure:
                return failure
            library = _open(folder, stem, refuse_foreign)
    return library or f"what the C++ compiler {command[0]} made cannot be loaded from {folder}"


def _open(folder: Path, stem: str, check: Callable[[Path], None] = lambda path: None) -> ctypes.CDLL | None:
    """The library that was compiled earlier; :obj:`None` if there is none or only damaged ones.

    A file's name ends in its size, because loading a truncated library would kill the process. Raises what ``check``
    raises for a file. The files of the package are as trustworthy as its modules and need no check.
    """
    for path in folder.glob(f"{stem}-*.so"):
        check(path)
        if path.stem == f"{stem}-{path.stat().st_size}":
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                continue
    return None


def _compile(command: list[str], folder: Path, stem: str) -> str | None:
    """Compile the library and move it to its final name; returns an error message, or :obj:`None`."""
    with tempfile.TemporaryDirectory() as work:  # only the finished library gets its name, which states its size
        made = Path(work, f"{stem}.so")
        failure = sources.compile(command, made)
        if failure is None:
            with replacing(folder / f"{stem}-{made.stat().st_size}.so") as temporary:
                shutil.copyfile(made, temporary)
    return failure
