"""Linear attention without a mask, for features that are not negative.

On CPU, one compiled function (``native/linear/``) computes it; it is a custom operator of torch. Plain torch does so on
other devices, in other dtypes, for wide heads, under ``torch.compile``, without a compiler, and for second derivatives.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention.inputs import with_ones
from pyg_topomask.ops.attention.normalizer import row_tolerance
from pyg_topomask.ops.attention.pair_kernels import scaled
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.numerics import power_of_two, size_of_rows, weighted_mean
from pyg_topomask.ops.second_derivatives import gradients_in_torch
from pyg_topomask.ops.segment import segment_linear_attention, segment_max, segments

_ENTRY = {torch.float32: "linear_float", torch.float64: "linear_double"}
_MOST_NUMBERS = 2**12  # of one graph's and head's state; wider heads are faster as whole matrices
_WORK_PER_THREAD = 2**22  # multiplications that are worth a second thread

load = partial(loader.load, "linear")
"""The library, compiled if necessary, or the reason why there is none."""


def linear_means(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Means of the values of each node's own graph, with weights :math:`q_i \cdot k_j / \sum_j q_i \cdot k_j`.

    Reference: Katharopoulos et al., *Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention*,
    ICML 2020, arXiv:2006.16236, equation 5.
    Cost: :math:`O(N R D)` operations per head, and :math:`O(N (R + D) + B R D)` memory.

    Args:
        q, k: Features, not negative, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        ``(means [N, H, D], sizes [N, H, 1])``. Where the sum of the weights is close to underflow, both are zero. Other
        sizes are positive, without a gradient.
    """
    if refuses(q, k, v) is None:
        ptr = torch.tensor([0, q.size(0)], device=q.device) if batch is None else _pointers(batch)
        out, size = _linear_means(q, k, v, ptr)
        return out, size[..., None]
    return _plain_means(q, k, v, batch)


def refuses(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why the compiled function cannot serve, or should not; :obj:`None` if it can."""
    if q.size(-1) == 0 or q.size(-1) * (v.size(-1) + 1) > _MOST_NUMBERS:
        return f"heads without features, or with more than {_MOST_NUMBERS} products, are left to plain torch"
    if torch.compiler.is_compiling():
        return "compiled code joins plain torch with what is before and after it"
    return loader.refuses("linear", q, k, v)


def _plain_means(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """`linear_means` in plain torch."""
    sums = segment_linear_attention(*scaled(q, k, key_scale(k, batch)), with_ones(v), batch)
    size = sums[..., -1:].detach()
    vanished = size < 2**14 * torch.finfo(v.dtype).tiny
    return weighted_mean(sums, v.size(-1), row_tolerance(v, batch, False)), size.masked_fill(vanished, 0)


@torch.no_grad()
def key_scale(k: Tensor, batch: Tensor | None) -> Tensor:
    """Scale ``[N, H, 1]`` of the keys of each graph that keeps products of features within the range.

    Scales of keys, and those of queries by row, are powers of two and cancel in the quotient, so they do not change any
    digit of the result.
    """
    top = size_of_rows(k)
    if batch is not None:
        top = segment_max(top, batch).index_select(0, batch)
    elif top.size(0):
        top = top.amax(0, keepdim=True)
    return power_of_two(top).expand(k.size(0), -1, -1)


@once_per_batch
def _pointers(batch: Tensor) -> Tensor:
    """First node of each graph, followed by the number of nodes, int64, shape ``[B + 1]``."""
    return torch.tensor(segments(batch).ptr, device=batch.device)


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``linear.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("graphs", "nodes", "heads", "width", "channels", "threads")),
        *((f"{name}_by_{axis}", ctypes.c_int64) for name in "qkv" for axis in ("row", "head")),
        *((name, ctypes.c_void_p) for name in ("ptr", "q", "k", "v", "out", "size")),
        *((name, ctypes.c_void_p) for name in ("grad", "grad_q", "grad_k", "grad_v")),
    ]


def _call(q: Tensor, k: Tensor, v: Tensor, **arrays: Tensor) -> None:
    """Fill results or gradients. Raises MemoryError."""
    library: Any = load()
    rows = {name: x if x.stride(2) == 1 else x.contiguous() for name, x in zip("qkv", (q, k, v))}
    num_nodes, heads, width = q.shape
    call = _Call(
        graphs=arrays["ptr"].numel() - 1,
        nodes=num_nodes,
        heads=heads,
        width=width,
        channels=v.size(2),
        threads=loader.num_threads(num_nodes * heads * width * v.size(2), _WORK_PER_THREAD),
        **{f"{name}_by_row": x.stride(0) for name, x in rows.items()},
        **{f"{name}_by_head": x.stride(1) for name, x in rows.items()},
        **{name: x.data_ptr() for name, x in (rows | arrays).items()},
    )
    failure = getattr(library, _ENTRY[q.dtype])(ctypes.byref(call), ctypes.c_int("grad" in arrays))
    loader.refuse_failure(failure, f"linear attention of {num_nodes} nodes")


@torch.library.custom_op("topomask::linear_means", mutates_args=())
def _linear_means(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    out, size = torch.empty(v.shape, dtype=v.dtype), torch.empty(v.shape[:2], dtype=v.dtype)
    _call(q, k, v, ptr=ptr, out=out, size=size)
    return out, size


@_linear_means.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape[:2])


@torch.library.custom_op("topomask::linear_means_backward", mutates_args=())
def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, out: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grads = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v)]
    named = dict(zip(("grad_q", "grad_k", "grad_v"), grads))
    _call(q, k, v, ptr=ptr, out=out, size=size, grad=grad.contiguous(), **named)
    return grads[0], grads[1], grads[2]


@_gradients.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, out: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, ptr, out, size = ctx.saved_tensors
    needed = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        grads = gradients_in_torch(partial(_means_again, ptr), (q, k, v), needed, grad)
    else:
        grads = [x if needs else None for x, needs in zip(_gradients(grad, q, k, v, ptr, out, size), needed)]
    return (*grads, None)


_linear_means.register_autograd(_backward, setup_context=_setup_context)


def _means_again(ptr: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The means in plain torch."""
    return _plain_means(q, k, v, torch.repeat_interleave(ptr.diff()))[0]
