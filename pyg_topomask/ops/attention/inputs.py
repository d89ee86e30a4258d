"""Queries, keys and values: what every attention checks and prepares."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import segments

# Size from which a value's rounding error, multiplied by features as large, is worth avoiding.
_HUGE = 2.0**20


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together. Raises ValueError and TypeError."""
    if q.dim() != 3 or q.shape != k.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "'q' and 'k' must be [N, H, R] and 'v' [N, H, D] "
            f"(got {list(q.shape)}, {list(k.shape)} and {list(v.shape)})"
        )
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise TypeError(f"'q', 'k' and 'v' must share one floating dtype (got {q.dtype}, {k.dtype} and {v.dtype})")


def with_ones(v: Tensor) -> Tensor:
    """Values with a last column of ones, whose weighted sum is the denominator."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)


def from_origin(v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Values less an origin of their graph, and the origin: the first node's value in channels where it is huge.

    Where weights add up to one, a mean of values is the origin plus the mean of their differences from it. Huge equal
    values so differ by exactly zero. Without this, the rounding error of their mean would reach the gradients of
    scores, and features of 1e15 would multiply it beyond the range of float32.

    Args:
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        Shape ``[N, H, D]``, and the origin without a gradient, ``[N, H, D]``, or ``[1, H, D]`` for one graph;
        :obj:`None` where no value is known to be huge.
    """
    if v.size(0) == 0:
        return v, None
    first = v.detach()[:1] if batch is None else v.detach().index_select(0, _first_nodes(batch))
    huge = first.abs() > _HUGE
    if not v.is_cuda and not torch.compiler.is_compiling() and not bool(huge.any()):
        return v, None
    origin = torch.where(huge, first, 0)
    origin = origin if batch is None else origin.index_select(0, batch)
    return v - origin, origin


@once_per_batch
def _first_nodes(batch: Tensor) -> Tensor:
    """First node of each graph, shape ``[B]``; any node for a graph without nodes."""
    first = torch.tensor(segments(batch).ptr[:-1], device=batch.device)
    return first.clamp(max=batch.numel() - 1)
