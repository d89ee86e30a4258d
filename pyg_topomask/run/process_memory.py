"""Memory of this process and of the machine."""

import ctypes
import gc
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import torch

_CONTAINER = Path("/sys/fs/cgroup")


def resident_mib() -> float:
    """Resident memory of this process."""
    return psutil.Process().memory_info().rss / 2**20


def available_mib() -> float:
    """Memory that a process may still take: of the machine, or of its container, which psutil does not read."""
    found = psutil.virtual_memory().available
    with suppress(OSError, ValueError, TypeError):  # no container, or one without a limit or without statistics
        limit, used = (int((_CONTAINER / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
        found = min(found, limit - used + int(cached[1]))  # type: ignore[index]  # files are dropped when it is short
    return found / 2**20


def peak_resident_mib() -> float | None:
    """Largest resident memory since `reset_peak` on Linux, else of the process so far; psutil tells it on Windows.

    None if the system does not tell it, such as gVisor, in which some clouds run containers.
    """
    with suppress(OSError, ValueError):
        (kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return round(int(kib) / 2**10, 1)
    if psutil.MACOS:
        import resource

        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1)
    peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
    return None if peak is None else round(peak / 2**20, 1)


def reset_peak() -> bool:
    """Return freed memory, and let the peak begin at what is left; False on other systems than Linux with glibc."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # systems without glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return Path("/proc/self/clear_refs").write_text("5") > 0
    except OSError:
        return False


def set_by_user() -> str | None:
    """An environment variable that sets glibc's memory, so that `keep_freed` does nothing; None if there is none."""
    return next((name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))), None)


def keep_freed(largest: int = 2**25) -> None:
    """Let glibc keep freed memory for the next step.

    Otherwise it returns much of it to the system, which clears the memory when it is taken again. `reset_peak` returns
    what is kept. This function does nothing on systems without glibc, under another allocator, and where environment
    variables set glibc's memory.

    Args:
        largest: Bytes of the largest array that is kept. By default 32 MiB, because glibc seldom finds room for larger
            ones in freed memory, so that the process grows.
    """
    if set_by_user():
        return
    trim_threshold, mmap_threshold = -1, -3  # names of glibc's options
    with suppress(OSError, AttributeError, TypeError):  # systems without glibc
        ctypes.CDLL(None).mallopt(trim_threshold, -1)
        ctypes.CDLL(None).mallopt(mmap_threshold, largest)


def peak_mib(function: Callable[[], object]) -> float | None:
    """Rise of this process's peak resident memory during a call above the memory before it; None where it has no reset.

    Freed memory that the C library keeps is returned before, because the call could use it unnoticed.
    """
    was_reset = reset_peak()
    before = resident_mib()
    function()
    return (peak_resident_mib() or 0.0) - before if was_reset else None


def peak_cuda_mib(function: Callable[[], object]) -> float:
    """Rise of the peak memory of tensors on the GPU during a call."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20
