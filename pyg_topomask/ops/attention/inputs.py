"""Queries, keys and values: what every attention checks and prepares."""

from __future__ import annotations

import torch
from torch import Tensor


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
