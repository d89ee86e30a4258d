"""Attention on pairs in one compiled function, which keeps no array of one number per pair and head.

The function is ``native/pairs/`` on CPU and ``fused_triton.py`` on CUDA.
It is a custom operator of torch, which ``torch.compile`` takes for one node. Its backward pass computes the
scores again. Second derivatives are those of the kernels in plain torch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention import fused_triton
from pyg_topomask.ops.attention.pair_kernels import EdgeVectors, PairKernel
from pyg_topomask.ops.hashing import draw_seeds, keep_factors
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.sparse import Pattern

load = partial(loader.load, "pairs")
"""The library, compiled if necessary, or the reason why there is none."""

_ENTRY = {torch.float32: "pair_sums_float", torch.float64: "pair_sums_double"}
_KERNELS = ("linear", "signed_linear", "softmax", "additive")

# Numbers of a pair's key and value, above which products of whole matrices are faster.
_MOST_NUMBERS = 256

# Pairs, heads and numbers that are worth a second thread.
_WORK_PER_THREAD = 2**20


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``attention.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "heads", "width", "channels", "threads", "kernel")),
        *((name, ctypes.c_int64) for name in ("signed_norm", "has_bound")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("entry", "bound") for step in ("pair", "head")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("q", "k", "v") for step in ("row", "head")),
        *(("negative_slope", ctypes.c_double), ("dropout", ctypes.c_double), ("seed", ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("rowptr", "col", "q", "k", "v", "entry", "bound")),
        *((name, ctypes.c_void_p) for name in ("edge", "edge_of_pair")),
        *((name, ctypes.c_int64) for name in ("common_edges", "edge_by_row", "edge_by_head")),
        ("sums", ctypes.c_void_p),
        *((f"grad{name}", ctypes.c_void_p) for name in ("", "_q", "_k", "_v", "_entry", "_bound", "_edge")),
    ]


def refuses(q: Tensor, v: Tensor, edges: bool = False) -> str | None:
    """Why the compiled function cannot serve, or should not; :obj:`None` if it can.

    Args:
        q: Queries, shape ``[num_rows, H, R]``.
        v: Values, shape ``[num_cols, H, D]``.
        edges: Whether there are edge vectors.
    """
    if q.device.type not in ("cpu", "cuda"):
        return f"it runs on CPU and CUDA, and the queries are on {q.device}"
    if q.dtype not in _ENTRY:
        return f"it computes in float32 and float64 (got {q.dtype})"
    if q.size(-1) + v.size(-1) > _MOST_NUMBERS:
        return f"keys and values of more than {_MOST_NUMBERS} numbers are faster as matrices"
    if _uses_triton(q):
        return "edge vectors are served on CPU only" if edges else fused_triton.refuses(q)
    return _no_library()


def _uses_triton(q: Tensor) -> bool:
    return q.is_cuda


@torch.compiler.assume_constant_result
def _no_library() -> str | None:
    library = load()
    return library if isinstance(library, str) else None


def fused_sums(
    kernel: PairKernel,
    pattern: Pattern,
    entries: Tensor,
    bounds: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: EdgeVectors | None = None,
) -> Tensor:
    """Sums of all heads in the form of `weighted_mean`, as `PairKernel.sums` gives them for one.

    Args:
        kernel: The kernel.
        pattern: The support, ``P`` pairs. Queries, keys, values and the result are in the order of the nodes.
        entries, bounds: Shape ``[P]``, or ``[P, H]``; the same tensor if the mask is its own bound.
        q: Queries, shape ``[num_rows, H, R]``.
        k, v: Keys and values, shape ``[num_cols, H, R]`` and ``[num_cols, H, D]``.
        edges: Edge vectors, for the softmax kernel; none if :obj:`None`.

    Returns:
        Shape ``[num_rows, H, D + 1]`` or ``[num_rows, H, D + 2]``.
    """
    bound = None if bounds is entries else _one_stride(bounds)
    if kernel.name == "additive":  # q + k is the product of (q, 1) and (1, k)
        q, k = torch.cat([q, torch.ones_like(q)], -1), torch.cat([torch.ones_like(k), k], -1)
    q, k, v = (pattern.arrange(x) for x in (q, k, v))
    seed = draw_seeds(1) if kernel.dropout else None
    edge, of_pair, common = (None, None, 0) if edges is None else edges
    where = pattern.rowptr, pattern.col, of_pair
    return pattern.restore(_sums(q, k, v, _one_stride(entries), bound, edge, *where, seed, common, *kernel))


def _one_stride(entries: Tensor) -> Tensor:
    """Entries without gaps in memory: those of a pair side by side, or those of a head."""
    return entries if entries.t().is_contiguous() else entries.contiguous()


@torch.library.custom_op("topomask::pair_sums", mutates_args=())
def _sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    edge: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    edge_of_pair: Tensor | None,
    seed: Tensor | None,
    common_edges: int,
    kernel: str,
    signed: bool,
    signed_features: bool,
    negative_slope: float,
    dropout: float,
) -> Tensor:
    settings = PairKernel(kernel, signed, signed_features, negative_slope, dropout)
    sums = q.new_empty(*q.shape[:2], v.size(-1) + _num_columns(bounds, settings))
    _call(q, k, v, entries, bounds, edge, rowptr, col, edge_of_pair, seed, common_edges, settings, {"sums": sums})
    return sums


@_sums.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:2], v.size(-1) + _num_columns(bounds, PairKernel(*rest[6:])))


@torch.library.custom_op("topomask::pair_sums_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    of_entries: bool,
    of_bounds: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    edge: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    edge_of_pair: Tensor | None,
    seed: Tensor | None,
    common_edges: int,
    kernel: str,
    signed: bool,
    signed_features: bool,
    negative_slope: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, entries, bounds and edge vectors; those of the masks are empty unless asked for."""
    grads = {
        f"grad_{name}": x.new_empty(x.shape)
        for name, x in (("q", q), ("k", k), ("v", v), ("edge", edge))
        if x is not None
    }
    # Entries have a stride between heads, which their gradients share; the others are contiguous.
    for name, x, wanted in zip(("grad_entry", "grad_bound"), (entries, bounds), (of_entries, of_bounds)):
        if wanted and x is not None:
            grads[name] = torch.zeros_like(x)
    settings = PairKernel(kernel, signed, signed_features, negative_slope, dropout)
    arguments = (q, k, v, entries, bounds, edge, rowptr, col, edge_of_pair, seed, common_edges, settings)
    _call(*arguments, {"grad": grad.contiguous(), **grads})
    names = ("q", "k", "v", "entry", "bound", "edge")
    found = [grads.get(f"grad_{name}", q.new_empty(0)) for name in names]
    return found[0], found[1], found[2], found[3], found[4], found[5]


@_gradients.register_fake
def _(
    grad: Tensor,
    of_entries: bool,
    of_bounds: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    edge: Tensor | None,
    *_: Any,
) -> tuple[Tensor, ...]:
    given = (entries, entries if bounds is None else bounds)
    weights = (torch.empty_like(x) if wanted else q.new_empty(0) for x, wanted in zip(given, (of_entries, of_bounds)))
    return *(x.new_empty(x.shape) for x in (q, k, v)), *weights, q.new_empty(0 if edge is None else edge.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:10])
    ctx.common_edges, ctx.kernel = inputs[10], PairKernel(*inputs[11:])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        grads = _differentiable_gradients(ctx, grad)
    else:
        grads = _gradients(grad, *ctx.needs_input_grad[3:5], *ctx.saved_tensors, ctx.common_edges, *ctx.kernel)
    return (*(x if needs else None for x, needs in zip(grads, ctx.needs_input_grad[:6])), *(None,) * 10)


_sums.register_autograd(_backward, setup_context=_setup_context)


def _differentiable_gradients(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """Gradients of the same sums in plain torch, which can be differentiated again."""
    q, k, v, entries, bounds, edge, rowptr, col, edge_of_pair, seed = ctx.saved_tensors
    row = torch.repeat_interleave(rowptr.diff())
    pattern = Pattern(row, col, q.size(0), k.size(0))
    sides = (q[..., :1], k[..., 1:]) if ctx.kernel.name == "additive" else (q, k)
    number = torch.arange(col.numel() * q.size(1), device=q.device).view(-1, q.size(1))
    kept = None if seed is None else keep_factors(ctx.kernel.dropout, seed.to(q.device), number).to(v)
    bounds_given = entries if bounds is None else bounds
    edges = None if edge is None else EdgeVectors(edge, edge_of_pair, ctx.common_edges)
    sums = ctx.kernel.sums_of_heads(pattern, entries, bounds_given, *sides, v, kept=kept, edges=edges)
    inputs = [x for x, needs in zip((q, k, v, entries, bounds, edge), ctx.needs_input_grad) if needs]
    found = iter(torch.autograd.grad(sums, inputs, grad, create_graph=True, allow_unused=True))
    return [next(found) if needs else None for needs in ctx.needs_input_grad[:6]]


def _num_columns(bounds: Tensor | None, kernel: PairKernel) -> int:
    return 2 if kernel.signed and (bounds is not None or kernel.signed_features) else 1


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    edge: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    edge_of_pair: Tensor | None,
    seed: Tensor | None,
    common_edges: int,
    kernel: PairKernel,
    results: dict[str, Tensor],
) -> None:
    """Fill sums or gradients. Raises MemoryError."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # often parts of one array
    if _uses_triton(q):
        return fused_triton.pair_sums(q, k, v, entries, bounds, rowptr, col, seed, kernel, results)
    library: Any = load()
    edge = edge if edge is None or edge.stride(-1) == 1 else edge.contiguous()
    tensors = {"q": q, "k": k, "v": v, "entry": entries, "bound": bounds, "edge": edge, **results}
    tensors |= {"rowptr": rowptr, "col": col, "edge_of_pair": edge_of_pair}
    work = col.numel() * q.size(1) * (q.size(-1) + v.size(-1))
    strides = {}
    for name, array in (("q", q), ("k", k), ("v", v), ("edge", edge)):
        if array is not None:
            strides[f"{name}_by_row"], strides[f"{name}_by_head"] = array.stride()[:2]
    for name, x in (("entry", entries), ("bound", bounds)):
        if x is not None:
            strides[f"{name}_by_pair"], strides[f"{name}_by_head"] = x.stride() if x.dim() == 2 else (x.stride(0), 0)
    call = _Call(
        rows=q.size(0),
        columns=k.size(0),
        heads=q.size(1),
        width=q.size(-1),
        channels=v.size(-1),
        threads=loader.num_threads(work, _WORK_PER_THREAD),
        kernel=_KERNELS.index("signed_linear" if kernel.signed_features else kernel.name),
        signed_norm=kernel.signed,
        negative_slope=kernel.negative_slope,
        dropout=kernel.dropout,
        seed=0 if seed is None else int(seed),
        has_bound=bounds is not None,
        common_edges=common_edges,
        **strides,
        **{name: x.data_ptr() for name, x in tensors.items() if x is not None},
    )
    failure = getattr(library, _ENTRY[q.dtype])(ctypes.byref(call))
    loader.refuse_failure(failure, f"attention on {col.numel()} pairs of {q.size(1)} heads")
