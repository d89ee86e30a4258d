"""Attention on the pairs of a mask with hubs: pairs are listed for one part of the rows at a time.

Any two nodes whose walks visit the same hub form a pair, so the number of pairs grows with the square of a hub's
degree, even if the mask stores few numbers. Each part is computed again in the backward pass: memory stays bounded, and
time grows. Transforms of ``torch.func`` know no such pass, so under them all parts are kept.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.checks import warn_once
from pyg_topomask.limits import limits
from pyg_topomask.ops.attention.engines import pairs, pairs_cpp, pairs_triton
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.segment import split_by_count
from pyg_topomask.typing import PerformanceWarning

_ENGINES = (pairs_cpp, pairs_triton, pairs)


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.mask is None or problem.support is None:
        return pairs.refuses(problem)
    return None if problem.has_hubs else "all pairs can be listed together"


def work(problem: Problem) -> dict[str, float]:
    """Pairs, at most, as for ``pairs``; they are listed twice."""
    _, heads, features, channels = problem.size
    pairs, listed = problem.num_terms * heads, 2 * problem.num_terms
    held, numbers = limits.pairs_at_once, pairs * (features + channels)
    return {"call": 1, "held": held, "listed": listed, "pair": pairs, "number": numbers}


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    sizes = split_by_count(problem.support.by_row(), limits.pairs_at_once // (4 * problem.v.size(1)))
    warn_once(
        "pairs of hubs",
        f"the mask has up to {problem.num_terms:,} pairs of nodes, because any two nodes whose walks visit the same "
        f"hub form a pair. Attention lists them in {len(sizes)} parts, and again in the backward pass: memory stays "
        "bounded, and time grows",
        PerformanceWarning,
        stacklevel=4,
    )
    first = replace(problem, rows=(0, sizes[0]))
    attend_part = next(engine.attend for engine in _ENGINES if engine.refuses(first) is None)
    parts, start = [], 0
    for size, q in zip(sizes, problem.q.split(sizes)):
        rows = start, start + size

        def part(q: Tensor, k: Tensor, v: Tensor, rows: tuple[int, int] = rows) -> Tensor:
            return attend_part(replace(problem, q=q, k=k, v=v, rows=rows))

        given = q, problem.k, problem.v
        parts.append(part(*given) if loader.is_transformed() else checkpoint(part, *given, use_reentrant=False))
        start += size
    return torch.cat(parts)
