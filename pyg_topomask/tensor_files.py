"""Files of tensors, arrays and plain containers, written atomically and read as data even if they are not trusted.

A pickle contains names of functions that are called while it is read, so a malicious file can run any program.
``torch.load`` has an allow-list for this (``weights_only=True``), but PyG's data sets fall back to loading without it,
and read some raw files with Python's own ``pickle``.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import copyreg
import io
import os
import pickle
import re
import tarfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import data as pyg_data
from torch_geometric.data import storage as pyg_storage

from pyg_topomask.cache import replacing


class UnreadableFileError(ValueError):
    """A file that is damaged, or contains something other than data."""


def save_tensors(value: Any, path: Path, durable: bool = False) -> None:
    """Write a file with ``torch.save``; it is either complete or absent.

    Args:
        value: Tensors, arrays, PyG graphs, and plain containers of them.
        path: Path of the file.
        durable: Wait until the content is on the disk, so that not even a power failure can damage it.

    Raises:
        OSError: If the disk is full, or the folder is not writable.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # raised by torch after the error of the file
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
        if durable:
            file.flush()
            os.fsync(file.fileno())


def load_tensors(path: Path, mmap: bool = False) -> Any:
    """Read a file of ``torch.save``: tensors, arrays, PyG graphs, and plain containers of them, on the CPU.

    Args:
        path: Path of the file.
        mmap: Map the file into memory instead of reading it.

    Raises:
        FileNotFoundError: If the file does not exist.
        UnreadableFileError: If it is damaged or contains anything else. Nothing from it has been executed.
    """
    torch.serialization.add_safe_globals(_SAFE_FOR_TORCH)
    try:
        with _quiet():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise
    except Exception as error:  # invalid files raise many kinds of errors
        raise UnreadableFileError(f"{path} cannot be read: {reason_of(error)}") from None


@contextlib.contextmanager
def only_data() -> Iterator[None]:
    """While active, ``torch.load`` and ``pickle`` read only data in this thread, even if a library requests more.

    Files with other content are refused with a :class:`pickle.UnpicklingError`. Members of tar archives that would be
    unpacked outside the folder are refused as well.
    """
    torch.serialization.add_safe_globals(_SAFE_FOR_TORCH)
    load = torch.load

    def load_torch(file: Any, *args: Any, **kwargs: Any) -> Any:
        return load(file, *args, **{**kwargs, "weights_only": True})

    def load_pickle(file: Any, **kwargs: Any) -> Any:
        return _DataUnpickler(file, **kwargs).load()

    def load_bytes(content: Any, **kwargs: Any) -> Any:
        return _DataUnpickler(io.BytesIO(content), **kwargs).load()

    with contextlib.ExitStack() as stack, _quiet():
        for module, name, function in ((torch, "load", load_torch), (pickle, "load", load_pickle),
                                       (pickle, "loads", load_bytes)):  # fmt: skip
            original = getattr(module, name)
            stack.callback(setattr, module, name, original)
            setattr(module, name, _in_this_thread(function, original))
        name, guard = _TAR_GUARD
        stack.callback(setattr, tarfile.TarFile, name, vars(tarfile.TarFile)[name])
        setattr(tarfile.TarFile, name, guard)
        yield


def reason_of(error: Exception) -> str:
    """One-line reason why a file could not be read, without torch's advice to read it in an unsafe way."""
    text = str(error)
    named = re.search(r"GLOBAL ([\w.]+)|refers to ([\w.]+)", text)
    if named:
        return f"it refers to {named[1] or named[2]}, which is not data and would be executed"
    if "Weights only load failed" in text:
        return "it was not written by torch.save, or is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, EOFError):
        return "it ends too early"
    return text.strip().partition("\n")[0].partition(". ")[0] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide PyG's and torch's warnings that a file needs another way of loading, because it is refused instead."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Weights only load failed|Detected pickle protocol")
        yield


class _DataUnpickler(pickle.Unpickler):
    """Python's unpickler with an allow-list of names that a file may refer to."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _SPARSE and re.fullmatch(r"scipy\.sparse(\._?\w+)?", module):
            return getattr(scipy.sparse, name)
        module = _RENAMED.get(module, module)
        if (module, name) not in _SAFE_FOR_PICKLE:
            raise pickle.UnpicklingError(f"the file refers to {module}.{name}, which is not data")
        return _SAFE_FOR_PICKLE[module, name]


_extractall = tarfile.TarFile.extractall


def _extract_inside(archive: tarfile.TarFile, path: Any = ".", members: Any = None, **options: Any) -> None:
    """``TarFile.extractall`` for a Python without extraction filters, as 3.11.3 and 3.10.11 are."""
    for member in archive.getmembers():
        parts = PurePosixPath(member.name)
        if parts.is_absolute() or ".." in parts.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is a link, or would be unpacked outside the folder")
    options.pop("filter", None)
    _extractall(archive, path, members, **options)


_TAR_GUARD: tuple[str, Any] = (
    ("extraction_filter", staticmethod(tarfile.data_filter))
    if hasattr(tarfile, "data_filter")
    else ("extractall", _extract_inside)
)
"""The attribute of ``TarFile`` that keeps members inside their folder, and its value."""


def _load_storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8"):
        raise pickle.UnpicklingError(f"bytes are never stored as text in {encoding}")
    return text.encode(encoding)


def _in_this_thread(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    owner = threading.get_ident()

    def choose(*args: Any, **kwargs: Any) -> Any:
        return (replacement if threading.get_ident() == owner else original)(*args, **kwargs)

    return choose


_numpy_core = np._core if hasattr(np, "_core") else np.core
_reconstruct, _scalar = _numpy_core.multiarray._reconstruct, _numpy_core.multiarray.scalar
_DTYPES = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdgFDSUOV"]

_SAFE_FOR_TORCH: list[Any] = [
    Data,
    HeteroData,
    *(getattr(pyg_data, name) for name in ("DataEdgeAttr", "DataTensorAttr") if hasattr(pyg_data, name)),
    *(getattr(pyg_storage, name) for name in ("BaseStorage", "GlobalStorage", "NodeStorage", "EdgeStorage")),
    *(np.ndarray, np.dtype, *_DTYPES),
    *((function, f"numpy.{core}.multiarray.{function.__name__}") for function in (_reconstruct, _scalar)
      for core in ("core", "_core")),
]  # fmt: skip

_SPARSE = {f"{kind}_{shape}" for kind in ("csr", "csc", "coo") for shape in ("matrix", "array")}
_RENAMED = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
"""Names of Python 2 modules and numpy 1 modules, mapped to their current names."""
_SAFE_FOR_PICKLE: dict[tuple[str, str], Any] = {
    **{("builtins", name): getattr(builtins, name) for name in
       ("list", "dict", "set", "frozenset", "tuple", "int", "float", "complex", "bool", "str", "bytes", "object")},
    ("copyreg", "_reconstructor"): copyreg._reconstructor,  # type: ignore[attr-defined]
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _numpy_core.numeric._frombuffer,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch.storage", "_load_from_bytes"): _load_storage,
}  # fmt: skip
