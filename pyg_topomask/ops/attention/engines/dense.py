"""Attention with the whole mask as one dense matrix, in plain torch."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.ops.attention.problem import Problem


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return "there is no mask" if problem.mask is None else None


def work(problem: Problem) -> dict[str, float]:
    """Pairs of nodes and heads, their numbers, and the product that makes the matrix unless it is stored."""
    nodes, heads, features, channels = problem.size
    formed = 0 if problem.mask.is_dense else 1 if problem.owns_bound else 2
    made = formed * problem.mask.num_multiply_adds * nodes * (problem.mask.heads or 1)
    pairs, numbers = nodes * nodes * heads, nodes * nodes * heads * (features + channels)
    return {"call": 1, "held": pairs, "formed": formed, "made": made, "pair": pairs, "number": numbers}


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    q, k, v = (x.transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
    entry, bound = problem.dense()
    sums, size = problem.kernel.sums_in_blocks(entry, bound, q, k, v)
    norm = problem.row_norm(size, bound)
    return problem.finish(sums[0].transpose(0, 1), None if norm is None else norm[0].transpose(0, 1))
