"""The C++ sources of this folder, compiled once for this machine and stored where only the user can write."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyg_topomask.cache import cache_dir, locked, private_folder, refuse_foreign, replacing
from pyg_topomask.limits import limits
from pyg_topomask.ops.native import sources
from pyg_topomask.typing import PerformanceWarning


def load(name: str) -> ctypes.CDLL | str:
    """The library of the sources in ``native/<name>/``, or the reason why there is none.

    If the package was installed from a wheel that contains it for this kind of machine, that one is taken.
    Otherwise, it is compiled at the first use, for this machine's vector instructions, and kept in the cache
    folder; a line on stderr says so. The result is remembered for the process. ``$CXX`` sets the compiler, perhaps
    with flags, and is always used if it is set; otherwise ``c++``, ``g++`` or ``clang++`` is used.
    ``TOPOMASK_NATIVE=0`` switches all compiled code off.

    Warns:
        PerformanceWarning: Once, if there is a compiler, but no library. It is one line that names what failed.

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
    if is_transformed():
        return "transforms of torch.func have no rules for it"
    others = [x.device for x in given if x.device.type != "cpu"]
    return f"it runs on CPU only (got {others[0]})" if others else missing(name)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward mode is active: compiled code has no rules for them."""
    # Private names: in public, only errors of make_dual and requires_grad_ tell it, in 9 to 14 µs in place of 0.6.
    return forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def is_traced() -> bool:
    """Whether calls are recorded, so that only operators of torch are seen."""
    modes = map(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.__members__.values())
    return torch.compiler.is_compiling() or any(modes) or torch.jit.is_tracing()


@torch.compiler.assume_constant_result
def missing(name: str) -> str | None:
    """Why there is no library of that name; :obj:`None` if there is one. Compiled code asks once."""
    library = load(name)
    return library if isinstance(library, str) else None


def num_threads(work: int, per_thread: int) -> int:
    """Number of threads for some work, at most torch's, each with at least ``per_thread``."""
    return max(min(torch.get_num_threads(), int(work // max(per_thread * limits.thread_work, 1))), 1)


def library_folder() -> Path:
    """Folder of this user's compiled libraries."""
    return Path(os.path.abspath(cache_dir())) / f"native-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"


def native_state() -> dict[str, str]:
    """The C++ compiler, and how many compiled libraries there are, in words for users."""
    folder, names = library_folder(), sources.LIBRARIES
    kept, shipped = (sum(any(place.glob(f"{name}_cpu*")) for name in names) for place in (folder, sources.SHIPPED))
    try:
        compiler = " ".join(sources.find_compiler(os.environ.get("CXX")))
    except (sources.NoCompilerError, sources.CompilerError) as error:
        compiler = f"none: {error}"
    return {
        "compiler": compiler,
        "compiled": f"{shipped} of {len(names)} libraries in the package, {kept} in {folder}",
    }


@lru_cache
def _load(name: str) -> ctypes.CDLL | str:
    try:
        return _find(name, os.environ.get("CXX"), sources.instructions(torch.backends.cpu.get_cpu_capability()))
    except sources.NoCompilerError as error:  # usual, and no reason for a warning
        return str(error)
    except Exception as error:  # whatever fails, plain torch computes the same
        reason = " ".join(str(error).split()) or repr(error)
    warnings.warn(f"plain torch is used instead of compiled code: {reason}", PerformanceWarning, stacklevel=4)
    return reason


def _find(name: str, named: str | None, instructions: str) -> ctypes.CDLL:
    """A library that the package contains, or one that was compiled here, now or earlier."""
    shipped = None if named else _open(sources.SHIPPED, sources.shipped_stem(name, instructions))
    if shipped is not None:
        return shipped
    command = [*sources.find_compiler(named), *sources.flags(name, instructions)]
    try:
        return _find_or_compile(name, command, library_folder())
    except OSError as error:
        place = f"{error.filename or library_folder()}: {error.strerror or error}"
        raise OSError(
            f"the compiled library cannot be kept in {place}; set TOPOMASK_CACHE to a folder of your own"
        ) from error


def _find_or_compile(name: str, command: list[str], folder: Path) -> ctypes.CDLL:
    """The library of a folder. Raises CompilerError, or OSError if it cannot be stored there."""
    folder = private_folder(folder)
    if os.name == "posix" and os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise OSError("its file system does not allow programs (noexec)")
    made_by = [os.path.realpath(command[0]), str(os.stat(command[0]).st_mtime_ns), *command[1:]]
    stem = f"{name}_cpu-{sources.fingerprint(name, *made_by)}"
    with locked(folder / "compile"):  # one process compiles, the others wait for it
        library = _open(folder, stem, refuse_foreign)
        if library is None:
            print(f"topomask: compiling {name} for this machine, once", file=sys.stderr, flush=True)
            library = ctypes.CDLL(str(_compile(name, command, folder, stem)))
    return library


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


def _compile(name: str, command: list[str], folder: Path, stem: str) -> Path:
    """Compile the library, open it in another process, and move it to its final name, which states its size."""
    with tempfile.TemporaryDirectory() as work:
        made = Path(work, f"{stem}.so")
        sources.compile([*command, str(sources.source(name))], made)
        final = folder / f"{stem}-{made.stat().st_size}.so"
        with replacing(final) as temporary:
            shutil.copyfile(made, temporary)
            _try(temporary, sources.entries(name), command[0])
    return final


_TRIAL = "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); [getattr(library, name) for name in sys.argv[2:]]"


def _try(path: Path, entries: list[str], compiler: str) -> None:
    """Open a new library in a process of its own, because a broken one may kill the process. Raises CompilerError."""
    if not sys.executable:  # Python is a part of another program
        return
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, str(path), *entries]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        raise sources.CompilerError(f"what the C++ compiler {compiler} made cannot be tried: {error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"a process that opened it ended with code {done.returncode}"])[-1]
        raise sources.CompilerError(f"what the C++ compiler {compiler} made cannot be loaded: {last}")
