"""Products of sparse factors in compiled code, ``native/sparse/``: the same as SciPy's, and about 4 times as fast."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.sparse import Pattern

load = partial(loader.load, "sparse")
"""The library, compiled if necessary, or the reason why there is none."""

_ENTRY = {torch.float32: "sparse_product_float", torch.float64: "sparse_product_double"}
_SIZE, _POINTER = ctypes.c_int64, ctypes.c_void_p
_ROWS_PER_THREAD = 2**12  # rows that are worth a second thread

# A result whose buffers have more than this many places for each entry is copied into smaller ones.
_MOST_ROOM = 2


class _Matrix(ctypes.Structure):
    """A factor; its fields are those of ``Matrix`` in ``product.cpp``."""

    _fields_ = [(name, _POINTER) for name in ("rowptr", "col", "value")]


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``product.cpp``."""

    _fields_ = [
        *((name, _SIZE) for name in ("rows", "columns", "inner", "threads")),
        *((name, _Matrix) for name in ("left", "right")),
        *((name, _POINTER) for name in ("first", "rowptr", "col", "value")),
        ("distance", _SIZE),
    ]


def refuses(value: Tensor, other: Tensor) -> str | None:
    """Why the compiled function cannot multiply entries like these; :obj:`None` if it can."""
    if value.device.type != "cpu":
        return f"it runs on CPU, and the entries are on {value.device}"
    if value.dtype not in _ENTRY or other.dtype != value.dtype:
        return f"it computes in float32 or float64 (got {value.dtype} and {other.dtype})"
    library = load()
    return library if isinstance(library, str) else None


def product(left: Pattern, value: Tensor, right: Pattern, other: Tensor) -> tuple[Pattern, Tensor, float]:
    r"""`pyg_topomask.ops.products.factors.sparse_product` before rows are reordered, and the mean distance between row
    and column.

    Raises:
        MemoryError: If memory is short.
    """
    entry: Any = getattr(load(), _ENTRY[value.dtype])
    rows = left.num_rows
    given = {"left": (left.rowptr, left.col, value), "right": (right.rowptr, right.col, other)}
    tensors = {name: [x.detach().contiguous() for x in parts] for name, parts in given.items()}
    first = torch.empty(rows + 1, dtype=torch.int64)
    call = _Call(
        rows=rows,
        columns=right.num_rows,
        inner=left.num_cols,
        threads=loader.num_threads(rows, _ROWS_PER_THREAD),
        first=first.data_ptr(),
        **{name: _Matrix(*(x.data_ptr() for x in parts)) for name, parts in tensors.items()},
    )
    what = f"a product of factors of {rows} rows"
    loader.refuse_failure(entry(ctypes.byref(call)), what)
    room = int(first[-1])
    rowptr, col, values = left.rowptr.new_empty(rows + 1), left.col.new_empty(room), value.new_empty(room)
    call.rowptr, call.col, call.value = (x.data_ptr() for x in (rowptr, col, values))
    if room == 0:
        rowptr.zero_()
    else:
        loader.refuse_failure(entry(ctypes.byref(call)), what)
    count = int(rowptr[-1])
    col, values = (x[:count] if room <= _MOST_ROOM * count else x[:count].clone() for x in (col, values))
    return Pattern(None, col, rows, right.num_rows, rowptr=rowptr), values, call.distance / max(count, 1)
