"""Calls a function in its own process: its memory is limited, and its crash does not end the program."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable
from typing import Any

import psutil


class ProcessFailedError(Exception):
    """The process ended without a result."""


def in_process(function: Callable[..., Any], *arguments: Any, timeout: float, mib: float | None = None) -> Any:
    """Call a function in a new process, and return its result.

    The process is forked from one that has only imported what trials need. So it starts within milliseconds, and has no
    threads of OpenMP, which do not survive a fork. On Windows, it is started from the beginning.

    Args:
        function: A function of a module.
        *arguments: Its arguments, which are pickled.
        timeout: Seconds to wait.
        mib: Memory that it may add to what it starts with; no limit if :obj:`None`.

    Raises:
        ProcessFailedError: If the process ends without a result, or takes too long and is ended.
    """
    windows = sys.platform == "win32"
    context: Any = multiprocessing.get_context("spawn" if windows else "forkserver")
    if not windows:
        context.set_forkserver_preload(["pyg_topomask.run.advise.trial"])
    receiver, sender = context.Pipe(duplex=False)
    # As bytes: torch would share the memory of each tensor by a file descriptor, and there are too few of them.
    process = context.Process(target=_call, args=(function, pickle.dumps(arguments), sender, mib))
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            raise ProcessFailedError(f"was stopped after {timeout:,.0f} s")
        succeeded, result = pickle.loads(receiver.recv_bytes())
    except EOFError:
        process.join(1)
        raise ProcessFailedError(f"ended with exit code {process.exitcode}, most likely for lack of memory") from None
    finally:
        process.kill()  # whatever it still does is not needed
        process.join()
        receiver.close()
    if not succeeded:
        raise ProcessFailedError(result)
    return result


def _call(function: Callable[..., Any], arguments: bytes, sender: Any, mib: float | None) -> None:
    try:
        if mib is not None and psutil.LINUX:  # an error here, where the system would end a process of its choice
            import resource

            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + int(mib * 2**20), hard))
        answer = True, function(*pickle.loads(arguments))
    except BaseException as error:
        answer = False, f"{type(error).__name__}: {error}"
    sender.send_bytes(pickle.dumps(answer))
    sender.close()
