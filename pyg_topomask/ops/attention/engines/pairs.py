"""Attention on the pairs in the support of a mask, head by head, in plain torch."""

from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.limits import limits
from pyg_topomask.ops.attention.kernels import factors_kept
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.hashing import draw_seeds


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return problem.no_pairs


def work(problem: Problem) -> dict[str, float]:
    """Pairs to be listed, pairs of all heads, and numbers of their keys and values; and numbers of the keys and values
    of rows, which are read and packed once, however many pairs they have.
    """
    nodes, heads, features, channels = problem.size
    pairs, listed = problem.num_pairs * heads, 0 if problem.support.kept else problem.num_terms
    numbers, rows = (count * (features + channels) for count in (pairs, nodes * heads))
    return {"call": 1, "held": problem.num_pairs, "listed": listed, "pair": pairs, "number": numbers, "row": rows}


def attend(problem: Problem) -> Tensor:
    """The outputs. A weight, of a pair and a head, takes about 45 bytes until the backward pass: if there are more than
    twice as many as pairs may be listed together, they are computed again, head by head.
    """
    pattern, entries, bounds = problem.pairs().evaluated()
    again = not plans.reading() and _are_many(problem, pattern.nnz * problem.v.size(1))
    seed = draw_seeds(1, device=problem.v.device) if problem.dropout else None
    factors = factors_kept(problem.dropout, seed, pattern, problem.v)
    arrays = pattern, entries, bounds, problem.q, problem.k, problem.v
    return problem.finish(problem.kernel.sums_of_heads(*arrays, again, factors, problem.edges, problem.signed))


def _are_many(problem: Problem, weights: int) -> bool:
    return problem.rows is None and weights > 2 * max(limits.pairs_at_once, problem.pairs_of_stored)
