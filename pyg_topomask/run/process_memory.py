"""Memory of this process and of the machine."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_STATUS, _MACHINE = Path("/proc/self/status"), Path("/proc/meminfo")


def peak_mib(function: Callable[[], object]) -> float | None:
    """Rise of this process's peak resident memory during a call above the memory before it, in MiB.

    None on systems other than Linux with glibc, whose kernel resets the peak on request.
    """
    gc.collect()
    returned = return_freed_memory()  # the call could use it unnoticed
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _kib(_STATUS, "VmRSS")
    except OSError:
        returned = False
    if not returned:
        function()
        return None
    function()
    return (_kib(_STATUS, "VmHWM") - before) / 1024


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
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found = min(found, (limit - used) / 2**20)
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
    for line in path.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise OSError(f"{path} has no {field}")
