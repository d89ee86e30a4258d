"""Linear attention in dense blocks of a mask, in plain torch or in a compiled function, ``native/blocks/``.

The compiled function forms no array of one number per pair and head, neither in the forward pass nor in the backward
pass, which computes the scores again. Second derivatives are those of the sums in plain torch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention.normalizer import sums_in_blocks
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.numerics import absolute
from pyg_topomask.ops.second_derivatives import gradients_in_torch

load = partial(loader.load, "blocks")
"""The library, compiled if necessary, or the reason why there is none."""

_FUNCTION = {torch.float32: "block_sums_float", torch.float64: "block_sums_double"}

# Multiplications that are worth a second thread.
_WORK_PER_THREAD = 2**22

# Graphs and heads that share a block of the mask are divided into parts, each with its own gradient of the block, so
# that all blocks together have about this many parts. They do not depend on the number of threads, so no result does.
_PARTS = 16


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``blocks.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("graphs", "heads", "nodes", "width", "channels", "threads", "parts")),
        *((name, ctypes.c_int64) for name in ("signed_norm", "has_bound", "mask_by_graph", "mask_by_head")),
        *((f"{name}_by_{step}", ctypes.c_int64) for name in ("q", "k", "v") for step in ("graph", "head", "row")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "entry", "bound", "sums", "grad")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("q", "k", "v", "entry", "bound")),
    ]


def block_sums(
    entry: Tensor, bound: Tensor, q: Tensor, k: Tensor, v: Tensor, signed: bool, signed_features: bool
) -> Tensor:
    """`block_sums_in_torch`, in compiled code if it can serve."""
    if signed_features or refuses(q.device) is not None:
        return block_sums_in_torch(entry, bound, q, k, v, signed, signed_features)
    return _sums(q, k, v, entry, None if bound is entry else bound.expand_as(entry), signed)


def block_sums_in_torch(
    entry: Tensor, bound: Tensor, q: Tensor, k: Tensor, v: Tensor, signed: bool, signed_features: bool
) -> Tensor:
    """Sums of linear attention within graphs of equal size.

    Args:
        entry, bound: Blocks of mask and bounding mask (senders, receivers), shape ``[g or 1, H or 1, n, n]``; the same
            tensor if the mask is its own bound.
        q, k: Queries and keys, shape ``[g, H, n, R]``.
        v: Values, shape ``[g, H, n, D]``.
        signed: Whether the denominator is the signed sum.
        signed_features: Whether ``q`` or ``k`` may contain negative numbers.

    Returns:
        Shape ``[g, H, n, D + 1]`` or ``[g, H, n, D + 2]``, in the form of `weighted_mean`.
    """
    q, k = q.mT.contiguous(), k.mT.contiguous()  # [g, H, R, n]
    kernel = size = k.mT @ q
    if signed_features:
        size = absolute(k).mT @ absolute(q)
    total = None if bound is entry and not signed_features else bound * size
    weight = kernel * entry if entry.requires_grad else kernel.mul_(entry)
    return sums_in_blocks(weight, total, v, signed)


refuses = partial(loader.refuses_device, "blocks")
"""Why the compiled function cannot serve features without signs on a device; :obj:`None` if it can."""


@torch.library.custom_op("topomask::block_sums", mutates_args=())
def _sums(q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None, signed: bool) -> Tensor:
    sums = _empty(v, v.size(-1) + (2 if signed and bound is not None else 1))
    _call(q, k, v, entry, bound, signed, {"sums": sums}, parts=q.size(0) * q.size(1))
    return sums


@_sums.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None, signed: bool) -> Tensor:
    return _empty(v, v.size(-1) + (2 if signed and bound is not None else 1))


@torch.library.custom_op("topomask::block_sums_backward", mutates_args=())
def _gradients(
    grad: Tensor,
    needed: list[bool],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entry: Tensor,
    bound: Tensor | None,
    signed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, entry and bound; those of entry and bound are empty where they are not needed."""
    parts = -(-_PARTS // max(entry.size(0) * entry.size(1), 1)) if any(needed) else q.size(0) * q.size(1)
    found = [_empty(x, x.size(-1)) for x in (q, k, v)]
    found += [entry.new_zeros(parts if need else 0, *entry.shape) for need in needed]
    names = ("grad_q", "grad_k", "grad_v", "grad_entry", "grad_bound")
    results = {"grad": grad.transpose(1, 2).contiguous(), **dict(zip(names, found))}
    _call(q, k, v, entry, bound, signed, results, parts)
    of_entry, of_bound = (x.sum(0) if need else x.new_empty(0) for x, need in zip(found[3:], needed))
    return found[0], found[1], found[2], of_entry, of_bound


@_gradients.register_fake
def _(
    grad: Tensor, needed: list[bool], q: Tensor, k: Tensor, v: Tensor, entry: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    weights = (entry.new_empty(entry.shape if need else 0) for need in needed)
    return *(_empty(x, x.size(-1)) for x in (q, k, v)), *weights


def _empty(like: Tensor, columns: int) -> Tensor:
    """``[g, H, n, columns]`` for an array ``[g, H, n, *]``, with the rows of a node side by side, as in the batch."""
    graphs, heads, nodes = like.shape[:3]
    return like.new_empty(graphs, nodes, heads, columns).transpose(1, 2)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.signed = inputs[5]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        grads = gradients_in_torch(partial(_in_torch, ctx.signed), ctx.saved_tensors, ctx.needs_input_grad, grad)
    else:
        grads = _gradients(grad, list(ctx.needs_input_grad[3:5]), *ctx.saved_tensors, ctx.signed)
    return (*(x if needs else None for x, needs in zip(grads, ctx.needs_input_grad[:5])), None)


_sums.register_autograd(_backward, setup_context=_setup_context)


def _in_torch(signed: bool, q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None) -> Tensor:
    """The sums of `_sums`."""
    return block_sums_in_torch(entry, entry if bound is None else bound, q, k, v, signed, False)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entry: Tensor,
    bound: Tensor | None,
    signed: bool,
    results: dict[str, Tensor],
    parts: int,
) -> None:
    """Fill sums or gradients. Raises MemoryError."""
    library: Any = load()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    entry = entry.contiguous()
    bound = entry if bound is None else bound.contiguous()
    graphs, heads, nodes, width = q.shape
    strides: dict[str, int] = {}
    for name, x in (("q", q), ("k", k), ("v", v)):
        strides |= {f"{name}_by_{step}": by for step, by in zip(("graph", "head", "row"), x.stride())}
    for step, size, by in zip(("graph", "head"), entry.shape, entry.stride()):
        strides[f"mask_by_{step}"] = by if size > 1 else 0
    tensors = {"q": q, "k": k, "v": v, "entry": entry, "bound": bound, **results}
    call = _Call(
        graphs=graphs,
        heads=heads,
        nodes=nodes,
        width=width,
        channels=v.size(-1),
        threads=loader.num_threads(graphs * heads * nodes**2 * (width + v.size(-1)), _WORK_PER_THREAD),
        parts=parts,
        signed_norm=signed,
        has_bound=bound is not entry,
        **strides,
        **{name: x.data_ptr() for name, x in tensors.items() if x.numel()},
    )
    failure = getattr(library, _FUNCTION[q.dtype])(ctypes.byref(call))
    loader.refuse_failure(failure, f"attention in {graphs} blocks of {nodes} nodes and {heads} heads")
