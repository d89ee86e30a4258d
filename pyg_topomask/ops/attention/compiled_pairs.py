"""The compiled function of attention on pairs, ``native/pairs/``, and its arguments."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader

load = partial(loader.load, "pairs")
"""The library, compiled if necessary, or the reason why there is none."""

ENTRY = {torch.float32: "pair_sums_float", torch.float64: "pair_sums_double"}
_KERNELS = ("linear", "signed_linear", "softmax", "additive")

# Pairs, heads and numbers that are worth a second thread.
_WORK_PER_THREAD = 2**20


class Inputs(NamedTuple):
    """Inputs of the operator; the last ones are the fields of a `PairKernel`."""

    q: Tensor
    k: Tensor
    v: Tensor
    entries: Tensor
    bounds: Tensor | None
    edge: Tensor | None
    rowptr: Tensor
    col: Tensor
    edge_of_pair: Tensor | None
    seed: Tensor | None
    order: Tensor | None
    coeffs: Tensor | None
    bound_coeffs: Tensor | None
    key_scale: Tensor | None
    tolerance: Tensor | None
    common_edges: int
    name: str
    signed: bool
    signed_features: bool
    negative_slope: float
    dropout: float

    @property
    def kernel(self) -> PairKernel:
        return PairKernel(*self[16:])

    @property
    def columns(self) -> int:
        """Number of columns of the result: those of means or of sums."""
        if self.tolerance is not None:
            return self.v.size(-1)
        has_size = self.bounds is not None or self.signed_features
        return self.v.size(-1) + (2 if self.signed and has_size else 1)


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``packed.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "heads", "width", "channels", "threads", "kernel")),
        *((name, ctypes.c_int64) for name in ("signed_norm", "has_bound")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("entry", "bound") for step in ("pair", "head")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("q", "k", "v") for step in ("row", "head")),
        *(("negative_slope", ctypes.c_double), ("dropout", ctypes.c_double), ("seed", ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("rowptr", "col", "low", "high", "order")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "entry", "bound", "coeffs", "bound_coeffs")),
        ("terms", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("edge", "edge_of_pair")),
        *((name, ctypes.c_int64) for name in ("common_edges", "edge_by_row", "edge_by_head")),
        ("key_scale", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("scale_by_row", "scale_by_head")),
        *(("tolerance", ctypes.c_void_p), ("tolerance_by_row", ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("sums", "denominator")),
        *((f"grad{name}", ctypes.c_void_p) for name in ("", "_q", "_k", "_v", "_entry", "_bound", "_edge")),
    ]


def without_gaps(inputs: Inputs) -> list[Tensor]:
    """Queries, keys and values whose last dimension has no gaps; they are often parts of one array."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in inputs[:3]]


def call(inputs: Inputs, results: dict[str, Tensor]) -> None:
    """Fill results or gradients. Raises MemoryError."""
    q, k, v = without_gaps(inputs)
    library: Any = load()
    edge = inputs.edge if inputs.edge is None or inputs.edge.stride(-1) == 1 else inputs.edge.contiguous()
    low, high = _reach(inputs.col, inputs.rowptr)
    coeffs = inputs.coeffs if inputs.coeffs is not None else inputs.bound_coeffs
    named = ("rowptr", "col", "order", "coeffs", "bound_coeffs", "edge_of_pair", "key_scale", "tolerance")
    tensors = {name: getattr(inputs, name) for name in named}
    tensors |= {"q": q, "k": k, "v": v, "entry": inputs.entries, "bound": inputs.bounds, "edge": edge}
    tensors |= {"low": low, "high": high, **results}
    work = inputs.col.numel() * q.size(1) * (q.size(-1) + v.size(-1))
    call = _Call(
        rows=q.size(0),
        columns=k.size(0),
        heads=q.size(1),
        width=q.size(-1),
        channels=v.size(-1),
        threads=loader.num_threads(work, _WORK_PER_THREAD),
        kernel=_KERNELS.index("signed_linear" if inputs.signed_features else inputs.name),
        signed_norm=inputs.signed,
        negative_slope=inputs.negative_slope,
        dropout=inputs.dropout,
        seed=0 if inputs.seed is None else int(inputs.seed),
        has_bound=inputs.bounds is not None,
        terms=0 if coeffs is None else coeffs.size(0),
        common_edges=inputs.common_edges,
        tolerance_by_row=int(inputs.tolerance is not None and inputs.tolerance.numel() > 1),
        **_strides(inputs, q, k, v, edge),
        **{name: x.data_ptr() for name, x in tensors.items() if x is not None},
    )
    failure = getattr(library, ENTRY[q.dtype])(ctypes.byref(call))
    loader.refuse_failure(failure, f"attention on {inputs.col.numel()} pairs of {q.size(1)} heads")


def _strides(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, edge: Tensor | None) -> dict[str, int]:
    """The arguments of `_Call` that say how many numbers lie between rows, pairs and heads."""
    strides = {}
    for name, array in (("q", q), ("k", k), ("v", v), ("edge", edge), ("scale", inputs.key_scale)):
        if array is not None:
            strides[f"{name}_by_row"], strides[f"{name}_by_head"] = array.stride()[:2]
    weighed = ("entry", inputs.entries, inputs.coeffs), ("bound", inputs.bounds, inputs.bound_coeffs)
    for name, x, table in weighed:
        if x is not None and table is None:  # [P] or [P, H]
            strides[f"{name}_by_pair"], strides[f"{name}_by_head"] = x.stride() if x.dim() == 2 else (x.stride(0), 0)
        elif x is not None:  # weights [Q] or [H, Q]
            strides[f"{name}_by_pair"], strides[f"{name}_by_head"] = 0, x.stride(0) if x.dim() == 2 else 0
    return strides


@once_per_batch
def _reach(col: Tensor, rowptr: Tensor) -> Tensor:
    """Smallest and largest column of each row, int32, shape ``[2, num_rows]``."""
    library: Any = load()
    reach = rowptr.new_empty(2, rowptr.numel() - 1)
    low, high = (ctypes.c_void_p(x.data_ptr()) for x in reach)
    given = (ctypes.c_void_p(x.data_ptr()) for x in (rowptr, col))
    library.pair_reach(ctypes.c_int64(reach.size(1)), *given, low, high)
    return reach
