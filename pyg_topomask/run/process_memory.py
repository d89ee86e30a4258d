"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_STATUS, _MACHINE, _CONTAINER = Path("/proc/self/status"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def peak_mib(function: Callable[[], object]) -> float | None:
    """Rise of this process's peak resident memory during a call above the memory before it, in MiB.

    None on systems other than Linux with glibc, whose kernel resets the peak on request.
    """
    if not reset_peak():  # freed memory that is kept could be used unnoticed
        function()
        return None
    before = _kib(_STATUS, "VmRSS")
    function()
    return (_kib(_STATUS, "VmHWM") - before) / 1024


def reset_peak() -> bool:
    """Return unused memory and let the peak begin at what is left; False where the system cannot do this."""
    gc.collect()
    returned = return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return returned


def peak_resident_mib() -> float | None:
    """Largest resident memory since `reset_peak`, or of this process so far; None on systems that do not report it."""
    try:
        return round(_kib(_STATUS, "VmHWM") / 1024, 1)
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def return_freed_memory() -> bool:
    """Return to the system what this process has freed and glibc keeps; False on systems without glibc."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return False
    return True


def peak_cuda_mib(function: Callable[[], object]) -> float:
    """Rise of the peak memory of tensors on the GPU during a call, in MiB."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def resident_mib() -> float | None:
    """Resident memory of this process in MiB; None on systems without ``/proc``."""
    try:
        return _kib(_STATUS, "VmRSS") / 1024
    except OSError:
        return None


def available_mib() -> float:
    """Memory that a process may still take, in MiB: of the machine, or of its container if that has less."""
    try:
        found = _kib(_MACHINE, "MemAvailable") / 1024
    except OSError:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20 if hasattr(os, "sysconf") else 4096.0
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((_CONTAINER / f"memory.{name}").read_text()) for name in ("max", "current"))
        reclaimable = _number(_CONTAINER / "memory.stat", "inactive_file")  # cached files, dropped when memory is short
        found = min(found, (limit - used + reclaimable) / 2**20)
    return found


@contextmanager
def limited_memory(mib: float) -> Iterator[None]:
    """Refuse allocations that would add more than ``mib`` to this process's address space (Linux).

    They raise an error in this process, where the system would end a process of its choice.
    """
    try:
        import resource

        limit = (_kib(_STATUS, "VmSize") + int(mib * 1024)) * 1024
    except (ImportError, OSError):
        yield
        return
    old, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (old, most))


def _kib(path: Path, field: str) -> int:
    return _number(path, f"{field}:")


def _number(path: Path, field: str) -> int:
    """The number after the word ``field`` at the beginning of a line."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == [field]:
            return int(words[1])
    raise OSError(f"{path} has no {field}")
