"""Attention in dense blocks of a mask, in plain torch: graphs of similar size are computed in one call, or the whole
mask is one block.
"""

import torch
from torch import Tensor

from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.segment import in_groups


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return problem.no_blocks


def work(problem: Problem, kept_pairs: bool = False) -> dict[str, float]:
    """Sizes of graphs, multiply-adds that make the blocks, pairs of nodes of all heads, and numbers of their keys and
    values. If ``kept_pairs``, a number for each pair and head is held.
    """
    _, heads, features, channels = problem.size
    groups, blocks, own = problem.groups, problem.mask.dense_blocks, problem.mask.heads or 1
    sizes, count = groups.num_nodes, len(groups.graphs)
    padded = sum(g * n * n for g, n in groups.shapes)
    shared = blocks.shared and groups.slot is None
    held = padded * heads if kept_pairs else own * (count * max(sizes) ** 2 if shared else padded)
    made = blocks.work(sizes) * own * (1 if problem.owns_bound else 2)
    pairs = heads * (padded if kept_pairs else sum(n * n for n in sizes))
    numbers = pairs * (features + channels)
    return {"call": 1, "held": held, "size": count, "made": made, "pair": pairs, "number": numbers}


def refuses_whole(problem: Problem) -> str | None:
    """Why the whole mask cannot be one block."""
    return "there is no mask" if problem.mask is None else None


def work_whole(problem: Problem) -> dict[str, float]:
    """Pairs of nodes and heads, their numbers, and the product that makes the matrix unless it is stored."""
    nodes, heads, features, channels = problem.size
    formed = 0 if problem.mask.product.stored else 1 if problem.owns_bound else 2
    made = formed * problem.mask.product.count() * nodes * (problem.mask.heads or 1)
    pairs = nodes * nodes * heads
    numbers = pairs * (features + channels)
    return {"call": 1, "held": pairs, "formed": formed, "made": made, "pair": pairs, "number": numbers}


def attend(problem: Problem, whole: bool = False) -> Tensor:
    """The outputs."""
    blocks, qkv = [problem.dense()] if whole else problem.blocks(), (problem.q, problem.k, problem.v)

    def sums(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [g, H, n, *]; the last numbers are norms
        entry, bound = blocks[number]
        found, size = problem.kernel.sums_in_blocks(entry, bound, q, k, v, problem.signed, problem.dropout)
        norm = problem.row_norm(size, bound)
        return found if norm is None else torch.cat([found, norm], dim=-1)

    if whole:
        found = sums(0, *(x.transpose(0, 1)[None] for x in qkv))[0].transpose(0, 1)
    else:
        found = in_groups(sums, problem.layout.groups, *qkv)
    if problem.errors is None:
        return problem.finish(found)
    return problem.finish(found[..., :-1], found[..., -1:].detach())
