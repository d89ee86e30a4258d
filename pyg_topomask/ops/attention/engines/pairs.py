"""Attention on the pairs in the support of a mask, head by head, in plain torch."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.ops.attention.problem import PAIRS_PER_NUMBER, Problem

# Weights (pairs times heads) that are kept for the backward pass, each with about 45 bytes: at most about 1 GiB, or
# twice as many as pairs may be listed. More of them are computed again, head by head.
_WEIGHTS_KEPT = 2**24


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return problem.no_pairs


def work(problem: Problem) -> dict[str, float]:
    """The amounts of `Problem.pair_work`."""
    return problem.pair_work()


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    pattern, entries, bounds = problem.pairs().evaluated()
    kept = max(_WEIGHTS_KEPT, 2 * PAIRS_PER_NUMBER[problem.kernel.name] * problem.mask.num_multiply_adds)
    again = problem.rows is None and pattern.nnz * problem.v.size(1) > kept
    arrays = pattern, entries, bounds, problem.q, problem.k, problem.v
    return problem.finish(problem.kernel.sums_of_heads(*arrays, again, edges=problem.edges))
