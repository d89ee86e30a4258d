"""The C++ search of ``native/topk/``, compiled once for this machine and stored where only the user can write."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.cache import cache_dir, locked, private_folder, replacing

SOURCES = tuple(Path(__file__).parents[1] / "native" / "topk" / name for name in ("search.cpp", "tree.h", "tile.h"))
MAX_TOPK = 256  # lists of the best keys are kept sorted by insertion

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
_ENTRY = {torch.float32: "topk_float", torch.float64: "topk_double"}
_TIMEOUT = 120  # seconds for one compilation, which takes about three


def load() -> ctypes.CDLL | str:
    """The library for this machine's vector instructions, compiled if necessary, or the reason why there is none.

    ``$CXX`` sets the compiler, perhaps with flags; otherwise ``c++``, ``g++`` or ``clang++`` is used. The result is
    remembered for the process.
    """
    folder = cache_dir().resolve() / f"native-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"
    return _load(os.environ.get("CXX"), torch.backends.cpu.get_cpu_capability(), folder)


@lru_cache
def _load(named: str | None, capability: str, folder: Path) -> ctypes.CDLL | str:
    try:
        program, *own_flags = shlex.split(named or "") or [""]
    except ValueError as error:
        return f"$CXX cannot be read as a command ({error}): {named}"
    choices = [program] if program else _COMPILERS
    compiler = next(filter(None, map(shutil.which, choices)), None)
    if compiler is None:
        return f"there is no C++ compiler: neither {' nor '.join(choices)} is on the path"
    flags = [*own_flags, *_FLAGS, *_vector_flags(capability)]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES))
    made_by = [platform.machine(), os.path.realpath(compiler), str(os.stat(compiler).st_mtime_ns), *flags]
    key.update("\0".join(made_by).encode())
    stem = f"topk_cpu-{key.hexdigest()[:24]}"
    try:
        folder = private_folder(folder)
        with locked(folder / "compile"):  # one process compiles, the others wait for it
            library = _open(folder, stem)
            if library is None:
                failure = _compile(compiler, flags, folder, stem)
                if failure:
                    return failure
                library = _open(folder, stem)
    except OSError as error:
        return f"the compiled library cannot be kept in {folder}: {error}; set TOPOMASK_CACHE to a folder of your own"
    if library is None:
        return f"what the C++ compiler {compiler} made cannot be loaded from {folder}"
    for name in _ENTRY.values():
        entry, size, pointer = getattr(library, name), ctypes.c_int64, ctypes.c_void_p
        entry.restype = ctypes.c_double
        entry.argtypes = [pointer] * 2 + [size] * 5 + [pointer] * 2 + [size] * 2 + [ctypes.c_double, size, pointer]
    return library


def _open(folder: Path, stem: str) -> ctypes.CDLL | None:
    """The library that was compiled earlier; :obj:`None` if there is none or only damaged ones.

    A file's name ends in its size, because loading a truncated library would kill the process.
    """
    for path in folder.glob(f"{stem}-*.so"):
        if path.stem == f"{stem}-{path.stat().st_size}":
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                continue
    return None


def _vector_flags(capability: str) -> list[str]:
    """Compiler flags for the CPU that torch detects at run time, so that different machines can share a cache
    folder.
    """
    if capability.startswith("AVX512"):
        return ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"]
    return ["-mavx2", "-mfma"] if capability == "AVX2" else []


def _compile(compiler: str, flags: list[str], folder: Path, stem: str) -> str | None:
    """Compile the library and move it to its final name; returns an error message, or :obj:`None`."""
    command = [compiler, *flags, str(SOURCES[0]), "-o"]
    with tempfile.TemporaryDirectory() as work:  # only the finished library gets its name, which states its size
        made = Path(work, f"{stem}.so")
        try:
            done = subprocess.run([*command, str(made)], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            return f"the C++ compiler {compiler} did not finish within {_TIMEOUT} s"
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            return f"the C++ compiler {compiler} failed with exit code {done.returncode}: {first}"
        with replacing(folder / f"{stem}-{made.stat().st_size}.so") as temporary:
            shutil.copyfile(made, temporary)
    return None


def search(
    q: Tensor, k: Tensor, ptr_q: list[int], ptr_k: list[int], topk: int, prune_from: int | None, max_visit: float
) -> tuple[Tensor, float]:
    """Indices of the best keys, and the share of key tiles that were scored.

    Args:
        q: Queries, shape ``[H, Nq, d]``, contiguous, float32 or float64, on CPU.
        k: Keys, shape ``[H, Nk, d]``.
        ptr_q, ptr_k: First row of each graph and the number of rows, ``B + 1`` numbers each.
        topk: At most `MAX_TOPK`.
        prune_from: Graphs with at least this many keys are searched by a tree; never if :obj:`None`.
        max_visit: If a sample of queries visits more than this share of the tree, the tree is not used.

    Returns:
        Shape ``[H, Nq, topk]``, int64, −1 if a graph has no more keys; and a number in [0, 1].
    """
    library: Any = load()
    heads, num_q, dim = q.shape
    index = torch.full((heads, num_q, topk), -1, dtype=torch.int64)
    bounds = [torch.tensor(ptr, dtype=torch.int64) for ptr in (ptr_q, ptr_k)]
    work = sum((b - a) * (d - c) for a, b, c, d in zip(ptr_q, ptr_q[1:], ptr_k, ptr_k[1:])) * heads * dim
    share = getattr(library, _ENTRY[q.dtype])(
        q.data_ptr(),
        k.data_ptr(),
        *(heads, num_q, k.size(1), dim, len(ptr_q) - 1),
        *(bound.data_ptr() for bound in bounds),
        *(topk, 2**62 if prune_from is None else prune_from, max_visit),
        torch.get_num_threads() if work > 2**22 else 1,  # a thread costs as much as 2^20 products
        index.data_ptr(),
    )
    if share == -2:
        raise RuntimeError("the compiled search failed; this is a bug: use backend='torch' to avoid it")
    if share < 0:
        raise MemoryError(f"not enough memory to search {k.size(1)} keys of {heads} heads")
    return index, share
