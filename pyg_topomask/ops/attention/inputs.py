"""Checks of queries, keys and values that several attentions share."""

from torch import Tensor

NORMALIZERS = ("bound", "signed")


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
