"""Exact search on CUDA: the best keys of a block of queries stay in registers while all keys of their graph are read.

A score and its key are packed into one sortable 64-bit number, which is larger for larger scores and, for equal scores,
for lower keys. All numbers differ, so ties need no special treatment.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops import triton_support
from pyg_topomask.ops.memo import once_per_setting
from pyg_topomask.ops.triton_support import power_of_two

MAX_TOPK = 128  # packed numbers kept in registers for each query
MAX_DIM = 256
_QUERIES, _KEYS = 32, 64
_NUMBERS = 2**12  # most numbers of the keys that are read at a time; more do not fit into the registers


def refuses(problem: Any) -> str | None:
    """Why the kernel does not support a problem, or :obj:`None`."""
    reason = triton_support.refuses(problem.q.device)
    if reason is not None:
        return reason
    if problem.q.dtype != torch.float32:
        return f"it computes in float32 (got {problem.q.dtype})"
    if problem.topk > MAX_TOPK:
        return f"it keeps at most {MAX_TOPK} keys (got topk = {problem.topk})"
    if not 0 < problem.q.size(-1) <= MAX_DIM:
        return f"keys have 1 to {MAX_DIM} numbers (got {problem.q.size(-1)})"
    return None


def pays(problem: Any) -> str | None:
    """Why the kernel should not be used unless it is named, or :obj:`None`."""
    return None if problem.q.is_cuda else "Triton's interpreter is meant for tests"


def search(problem: Any) -> Tensor:
    """Index of each kept key, shape ``[H, Nq, topk]``, −1 for missing keys."""
    heads, num_queries, dim = problem.q.shape
    index = problem.no_index()
    blocks = _blocks(tuple(problem.ptr_q), tuple(problem.ptr_k), index.device)
    module = "pyg_topomask.ops.topk.triton_kernels"
    if problem.k.size(1) == 0:
        return index
    key_size = torch.linalg.vector_norm(problem.k, torch.inf, dim=(1, 2))
    arguments = problem.q, problem.k, index, blocks, key_size, num_queries, problem.k.size(1), dim, problem.topk
    width = max(16, power_of_two(dim))
    sizes = {"QUERIES": _QUERIES, "KEYS": min(_KEYS, max(16, _NUMBERS // width)), "DIM": width}
    sizes["WIDTH"] = max(2, power_of_two(problem.topk))
    warps = 8 if width > 32 else 4  # the keys of four would not fit into their registers
    triton_support.launch(module, "search_block", (len(blocks), heads), arguments, sizes, num_warps=warps)
    return index


@once_per_setting(4)
def _blocks(ptr_q: tuple[int, ...], ptr_k: tuple[int, ...], device: torch.device) -> Tensor:
    """First and last query and key of each block of queries, int32, ``[blocks, 4]``; all layers share them."""
    graphs = zip(pairwise(ptr_q), pairwise(ptr_k))
    blocks = [(first, stop, *keys) for (start, stop), keys in graphs for first in range(start, stop, _QUERIES)]
    return torch.tensor(blocks, dtype=torch.int32, device="cpu").view(-1, 4).to(device, non_blocking=True)
