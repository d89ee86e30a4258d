"""The C++ search of ``native/topk/``."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.native import loader

MAX_TOPK = 256  # lists of the best keys are kept sorted by insertion

_ENTRY = {torch.float32: "topk_float", torch.float64: "topk_double"}
_SIZE, _POINTER = ctypes.c_int64, ctypes.c_void_p

load = partial(loader.load, "topk")
"""The library, compiled if necessary, or the reason why there is none."""


def search(
    q: Tensor, k: Tensor, ptr_q: list[int], ptr_k: list[int], topk: int, prune_from: int | None, max_visit: float
) -> tuple[Tensor, float]:
    """Indices of the best keys, and the share of the keys that were scored.

    Args:
        q: Queries, shape ``[H, Nq, d]``, contiguous, float32 or float64, on CPU.
        k: Keys, shape ``[H, Nk, d]``.
        ptr_q, ptr_k: First row of each graph and the number of rows, ``B + 1`` numbers each.
        topk: At most `MAX_TOPK`.
        prune_from: Graphs with at least this many keys are searched by a tree; never if :obj:`None`.
        max_visit: If a sample of queries visits more than this share of the tree, the tree is not used.

    Returns:
        Shape ``[H, Nq, topk]``, int64, −1 if a graph has no more keys; and a number in [0, 1].
    """
    library: Any = load()
    entry = getattr(library, _ENTRY[q.dtype])
    entry.restype = ctypes.c_double
    entry.argtypes = [_POINTER] * 2 + [_SIZE] * 5 + [_POINTER] * 2 + [_SIZE] * 2 + [ctypes.c_double, _SIZE, _POINTER]
    heads, num_q, dim = q.shape
    index = q.new_full((heads, num_q, topk), -1, dtype=torch.int64)
    bounds = [q.new_tensor(ptr, dtype=torch.int64) for ptr in (ptr_q, ptr_k)]
    work = sum((b - a) * (d - c) for a, b, c, d in zip(ptr_q, ptr_q[1:], ptr_k, ptr_k[1:])) * heads * dim
    share = entry(
        q.data_ptr(),
        k.data_ptr(),
        *(heads, num_q, k.size(1), dim, len(ptr_q) - 1),
        *(bound.data_ptr() for bound in bounds),
        *(topk, 2**62 if prune_from is None else prune_from, max_visit),
        torch.get_num_threads() if work > 2**22 else 1,  # a thread costs as much as 2^20 products
        index.data_ptr(),
    )
    loader.refuse_failure(min(int(share), 0), f"the search of {k.size(1)} keys of {heads} heads")
    return index, share
