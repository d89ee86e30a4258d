"""``topomask doctor``: what speed and results depend on at this machine, on one screen, and what to set."""

import os
import platform
import re
from argparse import Namespace
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pyg_topomask import __version__
from pyg_topomask.cache import cache_dir
from pyg_topomask.ops import native_state
from pyg_topomask.run.process_memory import set_by_user

PACKAGES = {
    "needed": ("torch", "torch_geometric", "numpy", "scipy"),
    "runner": ("lightning", "torchmetrics", "psutil", "pydantic", "pyyaml", "rich", "matplotlib"),
    "optional": ("ogb", "scikit-learn", "pymetis", "ray", "huggingface_hub", "torch_sparse", "triton"),
}
THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    known = facts(cores, load)
    found = advice(os.environ, cores, load, torch.get_num_threads(), known)
    print("\n".join(f"{name:<10} {text}" for name, text in known.items()))
    print("\nWhat to set\n" + "\n".join(f"- {line}" for line in found or ["Nothing: all is well."]))


def facts(cores: int, load: float) -> dict[str, str]:
    """Versions, compiled code, devices, threads and memory, each in a line."""
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return {
        "package": f"pyg_topomask {__version__} in {Path(__file__).parents[2]}",
        "system": f"Python {platform.python_version()} on {platform.platform()}",
        **{kind: ", ".join(f"{name} {_version(name)}" for name in packages) for kind, packages in PACKAGES.items()},
        "processor": f"{cores} cores, load {load:.1f}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"torch {torch.get_num_threads()}, "
        + ", ".join(f"{name}={os.environ.get(name)}" for name in THREADS),
        "GPU": ", ".join(f"{gpu.name}, {gpu.total_memory >> 30} GiB" for gpu in gpus) or f"none (torch for {build})",
        **native_state(),
        "allocator": _allocator(),
        "memory": f"runs free it at once: {name} is set" if (name := set_by_user()) else "runs keep it when freed",
        "data": f"TOPOMASK_DATA={os.environ.get('TOPOMASK_DATA')}, cache {cache_dir()}",
    }


def advice(
    environment: Mapping[str, str], cores: int, load: float, threads: int, known: Mapping[str, str]
) -> list[str]:
    """What to set or to install, with the reasons."""
    shared = f"the load is {load:.1f} on {cores} cores" if load > cores else "other programs may share the cores"
    waits = environment.get("OMP_WAIT_POLICY", "").lower() == "passive"
    compiled = not known["compiled"].startswith("0 of") or not known["compiler"].startswith("none")
    lines = {
        f"OMP_NUM_THREADS={cores}: {threads} threads take turns on {cores} cores.": threads > cores,
        f"OMP_WAIT_POLICY=passive before Python starts: {shared}, and threads that wait should sleep, not spin.": (
            threads > 1 and not waits
        ),
        "TOPOMASK_NATIVE=1: compiled code is switched off.": environment.get("TOPOMASK_NATIVE") == "0",
        "Install g++, or a wheel with compiled code: plain torch computes the same, but slower.": not compiled,
        "LD_PRELOAD=/path/to/libmimalloc.so (2.4) MIMALLOC_PURGE_DELAY=-1, if memory grows from batch to batch.": (
            known["allocator"] == "glibc"
        ),
        "Take mimalloc 2.4: version 2.0 gives memory back in every step.": "mimalloc.so.2.0" in known["allocator"],
        "If there is a GPU, see nvidia-smi: torch finds none.": known["GPU"].startswith("none (torch for CUDA"),
    }
    return [text for text, holds in lines.items() if holds]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"


def _allocator() -> str:
    """The library that replaces the system's allocator in this process, or the C library."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return "the system's"
    found = re.search(r"\S*/lib(mimalloc|jemalloc|tcmalloc)\S*", mapped)
    return found[0] if found else platform.libc_ver()[0] or "the system's"
