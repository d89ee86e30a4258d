"""Checks and preparation of queries, keys and values that several attentions share."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from pyg_topomask.checks import check_choice, readable
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import check_batch, segments

NORMALIZERS = ("bound", "signed")

# Values larger than this have rounding errors that become harmful when they are multiplied by features of equal size.
_HUGE = 2.0**20


def check_channels(q: Tensor) -> None:
    """Refuse queries without channels, because scores are scaled by their number. Raises ValueError."""
    if q.size(-1) == 0:
        raise ValueError(f"'q' and 'k' must have at least one channel per head (got {list(q.shape)})")


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values whose shapes or dtypes do not match. Raises ValueError and TypeError."""
    if q.dim() != 3 or q.shape != k.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "'q' and 'k' must be [N, H, R] and 'v' [N, H, D] "
            f"(got {list(q.shape)}, {list(k.shape)} and {list(v.shape)})"
        )
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise TypeError(f"'q', 'k' and 'v' must share one floating dtype (got {q.dtype}, {k.dtype} and {v.dtype})")


def check_masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: Tensor | None,
    path: str,
    paths: Collection[str],
    normalizer: str,
) -> None:
    """Check the arguments that all masked attentions share.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted, or the path or the normaliser is unknown.
        TypeError: If ``q``, ``k`` and ``v`` do not share one floating dtype.
    """
    check_qkv(q, k, v)
    check_choice("normalizer", normalizer, NORMALIZERS)
    check_choice("path", path, paths)
    if batch is not None:
        check_batch(batch, q.size(0))


def with_ones(v: Tensor) -> Tensor:
    """Append a column of ones to the values. Its weighted sum is the denominator."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)


def from_origin(v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Subtract an origin from the values of each graph; return the differences and the origin.

    The origin is the value of the graph's first node in channels where it is huge, and 0 in the others. If weights add
    up to one, the mean of the values is the origin plus the mean of the differences, and equal huge values differ by
    exactly zero. Otherwise, the rounding error of their mean would enter the gradients of the scores, where features of
    1e15 would multiply it beyond the range of float32.

    Args:
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        Differences, shape ``[N, H, D]``; and the origin without a gradient, ``[N, H, D]``, or ``[1, H, D]`` for one
        graph, or :obj:`None` if no origin was subtracted.
    """
    if v.size(0) == 0:
        return v, None
    nodes = slice(1) if batch is None else _first_nodes(batch)
    first = v.detach()[nodes]
    huge = first.abs() > _HUGE
    if readable(v) and not bool(huge.any()):
        return v, None
    origin = torch.where(huge, first, 0)
    origin = origin if batch is None else origin.index_select(0, batch)
    return v - origin, origin


@once_per_batch
def _first_nodes(batch: Tensor) -> Tensor:
    """First node of each graph, shape ``[B]``; an arbitrary node for a graph without nodes."""
    first = torch.tensor(segments(batch).ptr[:-1], device=batch.device)
    return first.clamp(max=batch.numel() - 1)
