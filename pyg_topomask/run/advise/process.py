"""Calls a function in its own process: its memory is limited, and its crash does not end the program."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import psutil

from pyg_topomask.run.user_modules import import_modules


class ProcessFailedError(Exception):
    """The process ended without a result."""


def in_process(
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float,
    mib: float | None = None,
    modules: Sequence[str] = (),
) -> Any:
    """Call a function in a new process, and return its result.

    The process is forked from one that has only imported what trials need. So it starts within milliseconds, and has no
    threads of OpenMP, which do not survive a fork. On Windows, it is started from the beginning.

    Args:
        function: A function of a module.
        *arguments: Its arguments, which are pickled.
        timeout: Seconds to wait.
        mib: Memory that it may add to what it starts with; no limit if :obj:`None`.
        modules: The user's modules, which it imports first.

    Raises:
        ProcessFailedError: If the process ends without a result, or takes too long and is ended.
    """
    windows = sys.platform == "win32"
    context: Any = multiprocessing.get_context("spawn" if windows else "forkserver")
    if not windows:
        context.set_forkserver_preload(["pyg_topomask.run.advise.trial"])
    with futures.ProcessPoolExecutor(1, context, _start, (mib, modules)) as pool:
        # As bytes: torch would share the memory of each tensor by a file descriptor, and there are too few of them.
        answer = pool.submit(_call, function, pickle.dumps(arguments))
        try:
            return pickle.loads(answer.result(timeout))
        except futures.TimeoutError:
            raise ProcessFailedError(f"was stopped after {timeout:,.0f} s") from None
        except BrokenProcessPool:
            raise ProcessFailedError("ended without a result, most likely for lack of memory") from None
        except Exception as error:
            raise ProcessFailedError(f"{type(error).__name__}: {error}") from None
        finally:
            for process in list(pool._processes.values()):  # whatever it still does is not needed
                process.kill()


def _start(mib: float | None, modules: Sequence[str]) -> None:
    """Import modules, and let allocations fail that exceed the limit, where the system would end a process."""
    import_modules(modules)
    if mib is not None and psutil.LINUX:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + int(mib * 2**20), hard))


def _call(function: Callable[..., Any], arguments: bytes) -> bytes:
    return pickle.dumps(function(*pickle.loads(arguments)))
