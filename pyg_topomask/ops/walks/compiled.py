"""Random walks and their pair tables in compiled code, ``native/walks/``: the same as those of plain torch."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.ops.walks.merge import WalkTable, num_monomials
from pyg_topomask.ops.walks.settings import SCHEMES, WalkSettings

if TYPE_CHECKING:
    from pyg_topomask.ops.walks.walkers import WalkGraph

load = partial(loader.load, "walks")
"""The library, compiled if necessary, or the reason why there is none."""

_NAMES = {torch.float32: "float", torch.float64: "double"}
_SIZE, _POINTER = ctypes.c_int64, ctypes.c_void_p

# Walk entries of both tables, and walkers, that are worth a second thread.
_ENTRIES_PER_THREAD, _WALKERS_PER_THREAD = 2**13, 2**13


class _Table(ctypes.Structure):
    """The walks of queries or keys; its fields are those of ``Table`` in ``pair_table.h``."""

    _fields_ = [("count", _SIZE), *((name, _POINTER) for name in ("start", "visited", "length", "load"))]


class _PairCall(ctypes.Structure):
    """Arguments of the pair table, described in ``pair_table.h``."""

    _fields_ = [
        *((name, _SIZE) for name in ("nodes", "lengths", "threads")),
        *((name, _Table) for name in ("left", "right")),
        *((name, _POINTER) for name in ("rowptr", "row", "col", "coeffs")),
    ]


class _FeatureCall(ctypes.Structure):
    """Arguments of the merged visits, described in ``features.h``."""

    _fields_ = [
        *((name, _SIZE) for name in ("nodes", "lengths")),
        ("walks", _Table),
        ("decay", _POINTER),
        ("exponent", ctypes.c_double),
        *((name, _POINTER) for name in ("rowptr", "col", "value")),
    ]


class _WalkCall(ctypes.Structure):
    """Arguments of the walk tables, described in ``walkers.h``."""

    _fields_ = [
        *((name, _SIZE) for name in ("nodes", "starts", "tables", "walks", "length", "block")),
        *((name, _SIZE) for name in ("threads", "scheme", "halts_below", "has_own")),
        *((name, _POINTER) for name in ("start", "stream", "rowptr", "col", "bound", "factor")),
    ]


def refuses(numbers: Tensor) -> str | None:
    """Why the compiled functions cannot serve loads or factors like these; :obj:`None` if they can."""
    if numbers.device.type != "cpu":
        return f"it runs on CPU, and the walks are on {numbers.device}"
    if numbers.dtype not in _NAMES:
        return f"it computes in float32 and float64 (got {numbers.dtype})"
    library = load()
    return library if isinstance(library, str) else None


def walk_tables(
    graph: WalkGraph, nodes: Tensor, stream: Tensor, num_tables: int, settings: WalkSettings, own: bool
) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
    """Index, length, load, count and, if wanted, own products of each table, in the order of `Walks`.

    Arguments are those of `pyg_topomask.ops.walks.sample.walk_tables`. Raises MemoryError.
    """
    library, name = load(), _NAMES[graph.factor.dtype]
    tensors = {"start": nodes, "stream": stream, "rowptr": graph.rowptr, "col": graph.col, "factor": graph.factor}
    tensors |= {} if graph.steps is None else {"bound": graph.steps.bound}
    tensors = {key: x.contiguous() for key, x in tensors.items()}
    call = _WalkCall(
        nodes=graph.num_nodes,
        starts=nodes.numel(),
        tables=num_tables,
        walks=settings.num_walks,
        length=settings.max_length,
        block=settings.block_size,
        threads=loader.num_threads(nodes.numel() * num_tables * settings.num_walks, _WALKERS_PER_THREAD),
        scheme=SCHEMES.index(settings.scheme),
        halts_below=round(settings.halt_prob * 2**32),
        has_own=own,
        **{key: x.data_ptr() for key, x in tensors.items()},
    )
    totals, made = (_SIZE * num_tables)(), _POINTER()
    failure = getattr(library, f"walk_tables_{name}")(ctypes.byref(call), totals, ctypes.byref(made))
    loader.refuse_failure(failure, f"walks of {nodes.numel()} nodes")
    try:
        found = []
        for table, total in enumerate(totals):
            index, length = nodes.new_empty(2, total), nodes.new_empty(total)
            loads, counts = (graph.factor.new_empty(total) for _ in range(2))
            products = graph.factor.new_empty(nodes.numel(), num_monomials(settings.max_length)) if own else None
            outputs = (*index, length, loads, counts, *([] if products is None else [products]))
            addresses = [_POINTER(x.data_ptr()) for x in outputs] + ([] if own else [None])
            failure = getattr(library, f"write_walks_{name}")(made, _SIZE(table), *addresses)
            loader.refuse_failure(failure, f"walks of {nodes.numel()} nodes")
            found.append((index, length, loads, counts, products))
        return found
    finally:
        getattr(library, f"release_walks_{name}")(made)


def pair_table(left: WalkTable, right: WalkTable, num_nodes: int, max_length: int) -> tuple[Tensor, Tensor]:
    """`pyg_topomask.ops.walks.pair_table.pair_table` of walks that `refuses` does not refuse.

    Raises:
        ValueError: If a walk has a node or a length that does not exist.
        MemoryError: If memory is short.
    """
    entry = getattr(load(), f"pair_table_{_NAMES[left.load.dtype]}")
    kept: list[Tensor] = []
    threads = loader.num_threads(left.length.numel() + right.length.numel(), _ENTRIES_PER_THREAD)
    sizes: dict[str, Any] = {"nodes": num_nodes, "lengths": max_length + 1, "threads": threads}
    rowptr = left.index.new_zeros(num_nodes + 1, dtype=torch.int64)
    tables = {name: _columns(table, left.load.dtype, kept) for name, table in (("left", left), ("right", right))}
    call = _PairCall(**sizes, **tables, rowptr=rowptr.data_ptr())
    failure, what = entry(ctypes.byref(call)), f"the pair table of {num_nodes} nodes"
    if failure == -3:
        raise ValueError(
            f"stored walks name a node outside of 0 to {num_nodes - 1}, or have more than 'max_length' = {max_length} "
            "steps: draw them again on this graph"
        )
    loader.refuse_failure(failure, what)
    num_pairs = int(rowptr[-1])
    index = rowptr.new_empty(2, num_pairs, dtype=torch.int32)
    coeffs = left.load.new_empty(num_monomials(max_length), num_pairs)
    call.row, call.col, call.coeffs = index[0].data_ptr(), index[1].data_ptr(), coeffs.data_ptr()
    if num_pairs > 0:
        loader.refuse_failure(entry(ctypes.byref(call)), what)
    return index, coeffs.t()


def walk_features(
    walks: WalkTable, num_nodes: int, decay: list[float], exponent: float
) -> tuple[Pattern, Tensor] | None:
    r"""Features :math:`f_i(u)\, \|f_i\|^{2 e}` of walks that `refuses` does not refuse, where :math:`f_i(u) = \sum_\ell
    \lambda_\ell\, \mathrm{load}_i(u, \ell)`.

    Args:
        walks: The walks.
        num_nodes: ``N``.
        decay: :math:`\lambda_\ell` of each length.
        exponent: :math:`e`.

    Returns:
        Pattern ``[N, N]`` and entries; :obj:`None` if the walks are not sorted, or not those of such a graph.

    Raises:
        MemoryError: If memory is short.
    """
    kept: list[Tensor] = []
    table, size = _columns(walks, walks.load.dtype, kept), walks.length.numel()
    rowptr, col = (walks.load.new_empty(length, dtype=torch.int32) for length in (num_nodes + 1, size))
    value, factors = walks.load.new_empty(size), walks.load.new_tensor(decay, dtype=torch.float64)
    outputs = dict(zip(("rowptr", "col", "value"), (x.data_ptr() for x in (rowptr, col, value))))
    call = _FeatureCall(num_nodes, len(decay), table, factors.data_ptr(), exponent, **outputs)
    failure = getattr(load(), f"walk_features_{_NAMES[walks.load.dtype]}")(ctypes.byref(call))
    if failure in (-3, -4):
        return None
    loader.refuse_failure(failure, f"the visits of {num_nodes} nodes")
    count = int(rowptr[-1])
    return Pattern(None, col[:count], num_nodes, num_nodes, rowptr=rowptr), value[:count]


def _columns(table: WalkTable, dtype: torch.dtype, kept: list[Tensor]) -> _Table:
    """A table for compiled code; ``kept`` holds its tensors for as long as the function runs."""
    tensors = [x.contiguous() for x in (*table.index.int(), table.length.int(), table.load.to(dtype))]
    kept += tensors
    return _Table(table.length.numel(), *(x.data_ptr() for x in tensors))
