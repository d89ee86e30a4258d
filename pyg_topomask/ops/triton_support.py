"""What the Triton kernels share: the reasons why they cannot run, and their import.

Set ``TRITON_INTERPRET=1`` before Triton is imported to run the kernels in Python on CPU tensors, as the tests do.
"""

import importlib
import os
import shutil
from functools import lru_cache
from typing import Any

import torch


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def refuses(device: torch.device) -> str | None:
    """Why no Triton kernel can run on tensors of a device; :obj:`None` if one can."""
    if device.type != "cuda" and not interpreted():
        return f"it runs on CUDA, and the queries are on {device}"
    return _missing(interpreted())


def launch(
    module: str,
    name: str,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    num_warps: int = 4,
) -> None:
    """Run a kernel for each program of a grid, on the device of its first argument.

    Args:
        module, name: Where the kernel is. The module can only be imported with Triton.
        grid: Number of programs.
        arguments: Tensors and numbers.
        constants: Numbers that are known to the compiler.
        num_warps: Warps of a program.
    """
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            getattr(importlib.import_module(module), name)[grid](*arguments, **constants, num_warps=num_warps)


def power_of_two(size: int) -> int:
    """The lowest power of two that is at least ``size``."""
    return 1 << max(size - 1, 0).bit_length()


@torch.compiler.assume_constant_result
@lru_cache
def _missing(interpreted: bool) -> str | None:
    try:
        importlib.import_module("triton")
    except ImportError:
        return "Triton is not installed (pip install triton)"
    if not interpreted and not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, and neither gcc nor clang is on the path"
    return None
