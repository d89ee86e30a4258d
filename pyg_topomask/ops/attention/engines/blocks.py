"""Attention in the dense blocks of a mask, in plain torch: graphs of similar size are computed in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.segment import in_groups


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return problem.no_blocks


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    groups, kernel, blocks = problem.layout.groups, problem.kernel, problem.blocks()

    def sums(number: int, *qkv: Tensor) -> Tensor:  # [g, H, n, *] -> [g, H, n, D + 1 or D + 2], and the norm
        entry, bound = blocks[number]
        found, size = kernel.sums_in_blocks(entry, bound, *qkv)
        norm = problem.row_norm(size, bound)
        return found if norm is None else torch.cat([found, norm], dim=-1)

    found = in_groups(sums, groups, problem.q, problem.k, problem.v)
    if problem.errors is None:
        return problem.finish(found)
    return problem.finish(found[..., :-1], found[..., -1:].detach())
