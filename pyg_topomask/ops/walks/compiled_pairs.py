"""Pair tables in one compiled function, ``native/walks/``, which sorts no list of terms."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.walks.merge import num_monomials

if TYPE_CHECKING:
    from pyg_topomask.ops.walks.pair_table import WalkTable

load = partial(loader.load, "walks")
"""The library, compiled if necessary, or the reason why there is none."""

_ENTRY = {torch.float32: "pair_table_float", torch.float64: "pair_table_double"}

# Walk entries of both tables that are worth a second thread.
_ENTRIES_PER_THREAD = 2**13


class _Table(ctypes.Structure):
    """The walks of queries or keys; its fields are those of ``Table`` in ``pair_table.cpp``."""

    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("start", "visited", "length", "load")),
    ]


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``pair_table.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "lengths", "threads")),
        *((name, _Table) for name in ("left", "right")),
        *((name, ctypes.c_void_p) for name in ("rowptr", "row", "col", "coeffs")),
    ]


def refuses(load_of_walks: Tensor) -> str | None:
    """Why the compiled function cannot serve walks of these loads; :obj:`None` if it can."""
    if load_of_walks.device.type != "cpu":
        return f"it runs on CPU, and the walks are on {load_of_walks.device}"
    if load_of_walks.dtype not in _ENTRY:
        return f"it computes in float32 and float64 (got {load_of_walks.dtype})"
    library = load()
    return library if isinstance(library, str) else None


def pair_table(left: WalkTable, right: WalkTable, num_nodes: int, max_length: int) -> tuple[Tensor, Tensor]:
    """`pyg_topomask.ops.walks.pair_table.pair_table` of walks that `refuses` does not refuse.

    Raises:
        ValueError: If a walk has a node or a length that does not exist.
        MemoryError: If memory is short.
    """
    entry = getattr(load(), _ENTRY[left.load.dtype])
    kept: list[Tensor] = []

    def address(x: Tensor) -> int:
        kept.append(x.contiguous())  # for as long as the function runs
        return kept[-1].data_ptr()

    def columns(table: WalkTable) -> _Table:
        tensors = (*table.index, table.length, table.load.to(left.load))
        return _Table(table.length.numel(), *map(address, tensors))

    threads = min(torch.get_num_threads(), (left.length.numel() + right.length.numel()) // _ENTRIES_PER_THREAD)
    sizes: dict[str, Any] = {"nodes": num_nodes, "lengths": max_length + 1, "threads": max(threads, 1)}
    rowptr = left.index.new_zeros(num_nodes + 1)
    call = _Call(**sizes, left=columns(left), right=columns(right), rowptr=rowptr.data_ptr())
    _check(entry(ctypes.byref(call)), num_nodes, max_length)
    num_pairs = int(rowptr[-1])
    index = rowptr.new_empty(2, num_pairs)
    coeffs = left.load.new_empty(num_pairs, num_monomials(max_length))
    call.row, call.col, call.coeffs = index[0].data_ptr(), index[1].data_ptr(), coeffs.data_ptr()
    if num_pairs > 0:
        _check(entry(ctypes.byref(call)), num_nodes, max_length)
    return index, coeffs


def _check(failure: int, num_nodes: int, max_length: int) -> None:
    if failure == -1:
        raise MemoryError(f"not enough memory for the pair table of {num_nodes} nodes")
    if failure == -2:
        raise RuntimeError("the compiled pair table failed; this is a bug: set TOPOMASK_NATIVE=0 to avoid it")
    if failure == -3:
        raise ValueError(
            f"stored walks name a node outside of 0 to {num_nodes - 1}, or have more than 'max_length' = {max_length} "
            "steps: draw them again on this graph"
        )
