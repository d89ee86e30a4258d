"""The C++ search of ``native/topk/``."""

import torch
from torch import Tensor

from pyg_topomask.ops.native.op import Entry

MAX_TOPK = 256  # lists of the best keys are kept sorted by insertion

_ARRAYS = ("q", "k", "ptr_q", "ptr_k", "index", "share")
_search = Entry("topk", "topk_search", _ARRAYS, {"prune_from": int, "max_visit": float})


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
    heads, num_q, dim = q.shape
    index = q.new_full((heads, num_q, topk), -1, dtype=torch.int64)
    bounds = [q.new_tensor(ptr, dtype=torch.int64) for ptr in (ptr_q, ptr_k)]
    share = q.new_empty(1, dtype=torch.float64)
    work = sum((b - a) * (d - c) for a, b, c, d in zip(ptr_q, ptr_q[1:], ptr_k, ptr_k[1:])) * heads * dim
    threads = torch.get_num_threads() if work > 2**22 else 1  # a thread costs as much as 2^20 products
    _search((q, k, *bounds, index, share), 2**62 if prune_from is None else prune_from, max_visit, threads=threads)
    return index, float(share)
