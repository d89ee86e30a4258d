"""Linear attention with many features on the pairs of a mask, in a compiled function of its own, ``native/features/``.

It computes groups of rows that have many columns in common, so that a key is read once for several pairs. It keeps no
array of one number per pair and head: the backward pass computes the scores again. Second derivatives are those of the
kernel in plain torch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.second_derivatives import gradients_in_torch
from pyg_topomask.ops.sparse import Pattern

load = partial(loader.load, "features")
"""The library, compiled if necessary, or the reason why there is none."""

_ENTRY = {torch.float32: "feature_sums_float", torch.float64: "feature_sums_double"}

# Fewer features are faster row by row, in `fused_pairs`. Measured on CPU with 8 heads, forward and backward, on Cora
# and CiteSeer, whose masks have 1,160 and 290 pairs a node: 0.9 times as fast with 24 features, as fast with 32, 1.5
# times with 64, and 3.5 and 2 times with 256.
_FEWEST_FEATURES = 48

# Rows with fewer pairs share too few keys to be grouped: on CPU with 4 heads, forward and backward, row by row was 1.5
# times as fast with 16 pairs a row, as fast with 64 to 128, and 0.8 times with 256, all with 64 features.
_FEWEST_PAIRS = 96

# Pairs, heads and numbers that are worth a second thread.
_WORK_PER_THREAD = 2**20


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``features.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "heads", "width", "channels", "threads")),
        *((name, ctypes.c_int64) for name in ("signed_norm", "has_bound")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("entry", "bound") for step in ("pair", "head")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("q", "k", "v") for step in ("row", "head")),
        *((name, ctypes.c_void_p) for name in ("rowptr", "col", "q", "k", "v", "entry", "bound", "sums", "grad")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("q", "k", "v", "entry", "bound")),
    ]


def refuses(kernel: PairKernel, q: Tensor) -> str | None:
    """Why the compiled function cannot serve, or should not; :obj:`None` if it can.

    Args:
        kernel: The kernel.
        q: Queries, shape ``[num_rows, H, R]``.
    """
    if kernel.name != "linear" or kernel.signed_features or kernel.dropout:
        return "it serves linear kernels of features without signs, without dropout"
    if q.dtype not in _ENTRY:
        return f"it computes in float32 and float64 (got {q.dtype})"
    return refuses_features(q.size(-1), q.device)


def repays(num_pairs: int | None, num_rows: int) -> bool:
    """Whether rows have enough pairs for groups of rows; ``num_pairs`` is :obj:`None` if they are not known."""
    return num_pairs is None or num_pairs >= _FEWEST_PAIRS * num_rows


def refuses_features(num_features: int, device: torch.device) -> str | None:
    """`refuses` for so many features without signs."""
    if device.type != "cpu":
        return f"it runs on CPU, and the queries are on {device}"
    if num_features < _FEWEST_FEATURES:
        return f"fewer than {_FEWEST_FEATURES} features are faster row by row"
    return loader.missing("features")


def feature_sums(
    kernel: PairKernel, pattern: Pattern, entries: Tensor, bounds: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Sums of all heads in the form of `weighted_mean`, as `PairKernel.sums_of_heads` gives them.

    Args:
        kernel: The kernel.
        pattern: The support, ``P`` pairs. Queries, keys, values and the result are in the order of the nodes.
        entries, bounds: Shape ``[P]``, or ``[P, H]``; the same tensor if the mask is its own bound.
        q: Queries, shape ``[num_rows, H, R]``.
        k, v: Keys and values, shape ``[num_cols, H, R]`` and ``[num_cols, H, D]``.

    Returns:
        Shape ``[num_rows, H, D + 1]`` or ``[num_rows, H, D + 2]``.
    """
    q, k, v = (pattern.arrange(x) for x in (q, k, v))
    bound = None if bounds is entries else _without_gaps(bounds)
    return pattern.restore(_sums(q, k, v, _without_gaps(entries), bound, pattern.rowptr, pattern.col, kernel.signed))


def _without_gaps(entries: Tensor) -> Tensor:
    """Entries without gaps in memory, so that their gradients have the same strides."""
    return entries if entries.t().is_contiguous() else entries.contiguous()


@torch.library.custom_op("topomask::feature_sums", mutates_args=())
def _sums(
    q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None, rowptr: Tensor, col: Tensor, signed: bool
) -> Tensor:
    sums = q.new_empty(_shape(q, v, bounds, signed))
    _call(q, k, v, entries, bounds, rowptr, col, signed, {"sums": sums})
    return sums


@_sums.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None, *rest: Any) -> Tensor:
    return q.new_empty(_shape(q, v, bounds, rest[-1]))


@torch.library.custom_op("topomask::feature_sums_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    needed: list[bool],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    signed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, entries and bounds; those of entries and bounds are empty where they are not needed."""
    found = [x.new_empty(x.shape) for x in (q, k, v)]
    found += [torch.zeros_like(x) for x in _wanted(needed, entries, bounds)]
    names = ("grad_q", "grad_k", "grad_v", "grad_entry", "grad_bound")
    wanted = {name: x for name, x, some in zip(names, found, (True, True, True, *needed)) if some}
    _call(q, k, v, entries, bounds, rowptr, col, signed, {"grad": grad.contiguous(), **wanted})
    return found[0], found[1], found[2], found[3], found[4]


@_gradients.register_fake
def _(
    grad: Tensor,
    needed: list[bool],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    weights = (torch.empty_like(x) for x in _wanted(needed, entries, bounds))
    return *(x.new_empty(x.shape) for x in (q, k, v)), *weights


def _wanted(needed: list[bool], entries: Tensor, bounds: Tensor | None) -> list[Tensor]:
    """Entries and bounds; an empty tensor for those whose gradient is not needed."""
    given = (entries, entries if bounds is None else bounds)
    return [x if some else x.new_empty(0) for some, x in zip(needed, given)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.signed = inputs[7]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        *tensors, rowptr, col = ctx.saved_tensors
        grads = gradients_in_torch(partial(_in_torch, rowptr, col, ctx.signed), tensors, ctx.needs_input_grad, grad)
    else:
        grads = _gradients(grad, list(ctx.needs_input_grad[3:5]), *ctx.saved_tensors, ctx.signed)
    return (*(x if needs else None for x, needs in zip(grads, ctx.needs_input_grad[:5])), *(None,) * 3)


_sums.register_autograd(_backward, setup_context=_setup_context)


def _in_torch(
    rowptr: Tensor, col: Tensor, signed: bool, q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None
) -> Tensor:
    """The sums of `_sums`."""
    pattern = Pattern(torch.repeat_interleave(rowptr.diff()), col, q.size(0), k.size(0))
    return PairKernel("linear", signed).sums_of_heads(pattern, entries, entries if bounds is None else bounds, q, k, v)


def _shape(q: Tensor, v: Tensor, bounds: Tensor | None, signed: bool) -> tuple[int, int, int]:
    return q.size(0), q.size(1), v.size(-1) + (2 if signed and bounds is not None else 1)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    signed: bool,
    results: dict[str, Tensor],
) -> None:
    """Fill sums or gradients. Raises MemoryError."""
    library: Any = load()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "entry": entries, "rowptr": rowptr, "col": col, **results}
    strides = {}
    for name, x in (("q", q), ("k", k), ("v", v)):
        strides[f"{name}_by_row"], strides[f"{name}_by_head"] = x.stride()[:2]
    for name, given in (("entry", entries), ("bound", bounds)):
        if given is not None:
            by_head = given.stride(1) if given.dim() == 2 else 0
            strides[f"{name}_by_pair"], strides[f"{name}_by_head"] = given.stride(0), by_head
    if bounds is not None:
        tensors["bound"] = bounds
    call = _Call(
        rows=q.size(0),
        columns=k.size(0),
        heads=q.size(1),
        width=q.size(-1),
        channels=v.size(-1),
        threads=loader.num_threads(col.numel() * q.size(1) * q.size(-1), _WORK_PER_THREAD),
        signed_norm=signed,
        has_bound=bounds is not None,
        **strides,
        **{name: x.data_ptr() for name, x in tensors.items()},
    )
    failure = getattr(library, _ENTRY[q.dtype])(ctypes.byref(call))
    loader.refuse_failure(failure, f"attention on {col.numel()} pairs of {q.size(1)} heads")
