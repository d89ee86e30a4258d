"""Attention on pairs on CUDA: three kernels of ``fused_triton_kernels.py`` do what ``native/pairs/`` does on CPU.

Checked in Triton's interpreter against plain torch, and compiled for CUDA by the tests. Its speed is not measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.triton_support import power_of_two

_KERNELS = ("linear", "signed_linear", "softmax", "additive")  # their numbers in the Triton module
_PAIRS = 16  # pairs that a program reads at a time
_NUMBERS = 256  # most numbers of the keys and values of one pair, in all heads of a program


def refuses(q: Tensor) -> str | None:
    """Why the Triton kernels cannot serve queries ``q``; :obj:`None` if they can."""
    return triton_support.refuses(q.device)


def pair_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    entries: Tensor,
    bounds: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor | None,
    kernel: PairKernel,
    results: dict[str, Tensor],
) -> None:
    """Fill sums or gradients.

    Args:
        q, k, v: Queries, keys and values, shape ``[num_rows, H, R]``, ``[num_cols, H, R]`` and ``[num_cols, H, D]``,
            without gaps in the last dimension.
        entries, bounds: Mask and bounding mask, shape ``[P]`` or ``[P, H]``; no bounds if the mask is its own bound.
        rowptr, col: The pattern, int32, shape ``[num_rows + 1]`` and ``[P]``.
        seed: Seed of dropout, int64, shape ``[1]``; no dropout if :obj:`None`.
        kernel: Kernel and normaliser.
        results: ``"sums"``, or ``"grad"`` of the sums and the gradients ``"grad_q"``, ``"grad_k"``, ``"grad_v"``, and
            perhaps ``"grad_entry"`` and ``"grad_bound"``.
    """
    call = _prepare(q, k, v, entries, bounds, seed, kernel)
    if "sums" in results:
        has_size = bounds is not None or kernel.signed_features
        return call.launch("forward", q.size(0), rowptr, col, results["sums"], HAS_SIZE=has_size)
    grad, tops = results["grad"], q.new_empty(q.shape[:2])
    weights = [results.get("grad_entry"), results.get("grad_bound")]
    shared = [x is not None and x.dim() == 1 for x in weights]  # then each block of heads has its own sums
    parts = [x.new_empty(call.blocks, len(x)) if x is not None and one else x for x, one in zip(weights, shared)]
    flags = {"HAS_BOUND": bounds is not None, "SHARED_ENTRY": shared[0], "SHARED_BOUND": shared[1]}
    call.launch("backward_rows", q.size(0), rowptr, col, grad, tops, results["grad_q"], *parts, **flags)
    for x, part, one in zip(weights, parts, shared):
        if x is not None and part is not None and one:
            x.copy_(part.sum(0))
    transposed = _transpose(rowptr, col, k.size(0))
    call.launch("backward_columns", k.size(0), *transposed, grad, tops, results["grad_k"], results["grad_v"])


class _Call(NamedTuple):
    """What the three kernels have in common."""

    arrays: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    constants: dict[str, Any]
    blocks: int
    """Number of blocks of heads."""

    def launch(self, name: str, programs: int, *own: Tensor | None, **constants: Any) -> None:
        module = "pyg_topomask.ops.attention.fused_triton_kernels"
        arguments = (*self.arrays, *own, *self.numbers)
        triton_support.launch(module, name, (programs, self.blocks), arguments, self.constants | constants)


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None, seed: Tensor | None, kernel: PairKernel
) -> _Call:
    (heads, width), channels = q.shape[1:], v.size(-1)
    has_size = bounds is not None or kernel.signed_features
    has_denominator = kernel.signed or not has_size
    columns = channels + has_size + has_denominator
    bound = entries if bounds is None else bounds
    strides = [stride for x in (q, k, v) for stride in x.stride()[:2]]
    strides += [stride for x in (entries, bound) for stride in (x.stride() if x.dim() == 2 else (x.stride(0), 0))]
    block = _head_block(heads, width, channels)
    constants = {
        "KERNEL": _KERNELS.index("signed_linear" if kernel.signed_features else kernel.name),
        "HAS_DENOMINATOR": has_denominator,
        "SLOPE": kernel.negative_slope,
        "DROPPED": 0 if seed is None else int(kernel.dropout * 2**32),
        "SCALE": 1 / (1 - kernel.dropout) if kernel.dropout < 1 else 0.0,
        "PAIRS": _PAIRS,
        "HEADS": block,
        "WIDTH": power_of_two(width),
        "CHANNELS": power_of_two(channels),
    }
    numbers = (*strides, heads, width, channels, columns, len(entries), 0 if seed is None else int(seed))
    return _Call((q, k, v, entries, bound), numbers, constants, -(-heads // block))


def _head_block(heads: int, width: int, channels: int) -> int:
    """Number of heads of a program, a power of two."""
    return min(power_of_two(heads), max(1, _NUMBERS // (power_of_two(width) + power_of_two(channels))))


def _transpose(rowptr: Tensor, col: Tensor, num_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """First pair of each column in the transposed order, this order, and the row of each pair."""
    column, order = col.sort(stable=True)
    columns = torch.arange(num_columns + 1, dtype=col.dtype, device=col.device)
    row = torch.repeat_interleave(rowptr.diff(), output_size=len(col)).int()
    return torch.searchsorted(column, columns, out_int32=True), order, row
