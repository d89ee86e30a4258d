"""Files of tensors, arrays and plain containers, written atomically and read as data even if they are not trusted.

A pickle contains names of functions that are called while it is read, so a malicious file can run any program.
``torch.load`` has an allow-list for this (``weights_only=True``), but PyG's data sets fall back to loading without it,
and read some raw files with Python's own ``pickle``.
"""

import codecs
import collections
import contextlib
import copyreg
import io
import os
import pickle
import re
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import data as pyg_data
from torch_geometric.data import storage as pyg_storage

from pyg_topomask.cache import replacing

__all__ = ["UnreadableFileError", "load_tensors", "only_data", "reason_of", "save_tensors"]


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
    try:
        with _quiet():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise
    except Exception as error:  # invalid files raise many kinds of errors
        raise UnreadableFileError(f"{path} cannot be read: {reason_of(error)}") from None


@contextlib.contextmanager
def only_data() -> Iterator[None]:
    """While active, ``torch.load`` and ``pickle`` read only data, even if a library requests more.

    Files with other content are refused with a :class:`pickle.UnpicklingError`. Members of tar archives that would be
    unpacked outside the folder are refused with a :class:`tarfile.TarError`, and so are all tar archives by Python
    3.10.0 to 3.10.11 and 3.11.0 to 3.11.3, which cannot check members.
    """
    load = torch.load

    def load_torch(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(file, *args, **kwargs | {"weights_only": True})
        except pickle.UnpicklingError as error:
            # Also for protocols above 2, as in ogb's splits of large link data sets.
            if hasattr(file, "seek"):
                file.seek(0)
            try:
                return load(file, *args, **kwargs | {"weights_only": False, "pickle_module": _DATA_PICKLE})
            except pickle.UnpicklingError:
                if "GLOBAL" in str(error):  # names what is no data; this way of loading would name PyG's graphs
                    raise error from None
                raise

    unpacking: Any = mock.patch.multiple(tarfile.TarFile, extract=_refuse, extractall=_refuse)
    if hasattr(tarfile, "data_filter"):
        unpacking = mock.patch.object(tarfile.TarFile, "extraction_filter", staticmethod(tarfile.data_filter))
    with (
        _quiet(),
        mock.patch.object(torch, "load", load_torch),
        mock.patch.multiple(pickle, load=_load_pickle, loads=_loads_pickle),
        unpacking,
    ):
        yield


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise tarfile.TarError("this Python cannot unpack archives safely; update it to 3.10.12, 3.11.4 or later")


def reason_of(error: Exception) -> str:
    """One-line reason why a file could not be read, without torch's advice to read it in an unsafe way."""
    text = str(error)
    named = re.search(r"GLOBAL ([\w.]+)|refers to ([\w.]+)", text)
    if named:
        return f"it refers to {named[1] or named[2]}, which is not data and would be executed"
    if "Weights only load failed" in text or isinstance(error, KeyError):  # of a byte that is no instruction
        return "it was not written by torch.save, or is damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
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
        found = _SAFE_FOR_PICKLE.get((_current(module), name))
        if found is None:
            raise pickle.UnpicklingError(f"the file refers to {module}.{name}, which is not data")
        return found


def _load_pickle(file: Any, **kwargs: Any) -> Any:
    return _DataUnpickler(file, **kwargs).load()


def _loads_pickle(content: bytes, **kwargs: Any) -> Any:
    return _load_pickle(io.BytesIO(content), **kwargs)


def _load_storage(content: bytes) -> Any:
    """What ``torch.storage._load_from_bytes`` does, but reading only data: tensors in a pickle refer to it."""
    return torch.load(io.BytesIO(content), weights_only=True)


def _current(module: str) -> str:
    """The current name of a module of Python 2 or numpy 1."""
    module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
    return module.replace("numpy.core.", "numpy._core.")


_DATA_PICKLE = SimpleNamespace(__name__="data", Unpickler=_DataUnpickler, load=_load_pickle)
"""Stands for the module ``pickle`` in ``torch.load``."""

_numpy_core = np._core if hasattr(np, "_core") else np.core
_reconstruct, _scalar = _numpy_core.multiarray._reconstruct, _numpy_core.multiarray.scalar

_SAFE_FOR_TORCH: list[Any] = [  # PyG adds its graphs
    *(getattr(pyg_data, name) for name in ("DataEdgeAttr", "DataTensorAttr") if hasattr(pyg_data, name)),
    *(getattr(pyg_storage, name) for name in ("BaseStorage", "GlobalStorage", "NodeStorage", "EdgeStorage")),
    *(np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdgFDSUOV")),
    *((found, f"numpy.{core}.multiarray.{found.__name__}")
      for found in (_reconstruct, _scalar) for core in ("core", "_core")),
]  # fmt: skip
torch.serialization.add_safe_globals(_SAFE_FOR_TORCH)

_SPARSE = {f"{kind}_{shape}" for kind in ("csr", "csc", "coo") for shape in ("matrix", "array")}
_SAFE_FOR_PICKLE: dict[tuple[str, str], Any] = {
    **{(_current(found.__module__), found.__name__): found for found in (
        list, dict, set, frozenset, tuple, int, float, complex, bool, str, bytes, object,
        copyreg._reconstructor, codecs.encode, collections.defaultdict, collections.OrderedDict,  # type: ignore[attr-defined]
        np.ndarray, np.dtype, _reconstruct, _scalar, _numpy_core.numeric._frombuffer,
        torch.Size, torch._utils._rebuild_tensor_v2, torch._utils._rebuild_tensor,
    )},
    ("torch.storage", "_load_from_bytes"): _load_storage,
}  # fmt: skip
