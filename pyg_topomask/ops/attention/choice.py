"""The engines of masked attention, and the choice among them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice
from pyg_topomask.limits import limits
from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention.costs import estimate
from pyg_topomask.ops.attention.engines import (
    blocks,
    blocks_cpp,
    blocks_triton,
    factored,
    pairs,
    pairs_cpp,
    pairs_triton,
    parts,
    sdpa,
    unmasked,
    unmasked_cpp,
)
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.typing import PerformanceWarning

PATHS = ("auto", "factored", "pairwise", "blocks", "dense")


class Engine(NamedTuple):
    """One way to compute masked attention."""

    path: str
    """Name by which users choose it and its likes; engines without a mask serve every path."""
    refuses: Callable[[Problem], str | None]
    """Returns why the engine cannot serve, or :obj:`None`."""
    work: Callable[[Problem], dict[str, float]]
    """Returns the amounts of work of `costs.estimate`, and how many numbers are ``"held"`` at a time."""
    attend: Callable[[Problem], Tensor]
    """Returns the outputs, ``[N, H, D]``."""
    with_size: Callable[[Problem], tuple[Tensor, Tensor]] | None = None
    """Returns also :math:`S_i`, ``[N, H]``, which has a gradient if the kernel is linear."""
    reads_half: bool = False
    """Whether it reads half precision, and adds up in float32. For the others, half precision is widened."""


ENGINES = {
    "unmasked_cpp": Engine(
        "unmasked", unmasked_cpp.refuses, unmasked.work, unmasked_cpp.attend, unmasked_cpp.with_size
    ),
    "unmasked": Engine("unmasked", unmasked.refuses, unmasked.work, unmasked.attend),
    "sdpa": Engine("unmasked", sdpa.refuses, sdpa.work, sdpa.attend),
    "pairs_cpp": Engine("pairwise", pairs_cpp.refuses, pairs.work, pairs_cpp.attend, pairs_cpp.with_size),
    "pairs_triton": Engine(
        "pairwise", pairs_triton.refuses, pairs.work, pairs_triton.attend, pairs_triton.with_size, reads_half=True
    ),
    "pairs": Engine("pairwise", pairs.refuses, pairs.work, pairs.attend),
    "parts": Engine("pairwise", parts.refuses, parts.work, parts.attend),
    "blocks_cpp": Engine("blocks", blocks_cpp.refuses, blocks.work, blocks_cpp.attend, blocks_cpp.with_size),
    "blocks_triton": Engine(
        "blocks", blocks_triton.refuses, blocks.work, blocks_triton.attend, blocks_triton.with_size
    ),
    "blocks": Engine("blocks", blocks.refuses, partial(blocks.work, kept_pairs=True), blocks.attend),
    "factored": Engine("factored", factored.refuses, factored.work, factored.attend),
    "dense": Engine("dense", blocks.refuses_whole, blocks.work_whole, partial(blocks.attend, whole=True)),
}
"""Engines by name."""


def attend(problem: Problem, path: str = "auto") -> Tensor:
    """The outputs ``[N, H, D]``, by the engine that `choose_engine` chooses."""
    wide = problem.wide
    engine = ENGINES[choose_engine(problem if problem.v.is_cuda else wide, path)]
    return engine.attend(problem if engine.reads_half else wide)


def choose_engine(problem: Problem, path: str = "auto") -> str:
    """Name of the engine that serves the problem with the least estimated time; in a run with a plan, the engine that
    was chosen when the plan was made, or its twin for the device.

    Args:
        problem: The problem.
        path: ``"auto"`` for all engines, or the path whose engines may be taken.

    Raises:
        ValueError: If there is no such path, or none of its engines serves.
    """
    check_choice("path", path, PATHS)
    for watch in _watching:
        watch(problem)
    # A copy, so that what the choice finds does not stay in the problem, where a run with a plan would miss it.
    chosen: str = plans.once(
        "engine",
        lambda: _cheapest(replace(problem) if plans.making() else problem, path),
        forgets=lambda name: ENGINES[name].path != "pairwise",  # which needs the pairs that were counted
    )
    if plans.making():
        with plans.apart():
            reason = ENGINES[chosen].refuses(replace(problem))
        if reason:
            raise ValueError(f"the engine {chosen!r} of the earlier plan cannot serve this batch: {reason}")
    return _on_device(chosen, problem.v) if plans.reading() else chosen


def _on_device(name: str, like: Tensor) -> str:
    """The engine for tensors that may lie on another device than those for which a plan was made."""
    kind, _, language = name.rpartition("_")
    if language not in ("cpp", "triton"):
        return name
    if not like.is_cuda:
        return f"{kind}_cpp"  # which serves all tensors there
    twin = f"{kind}_triton"
    return twin if twin in ENGINES and triton_support.refuses(like.device) is None else kind


def _cheapest(problem: Problem, path: str) -> str:
    allowed = [name for name, engine in ENGINES.items() if problem.mask is None or path in ("auto", engine.path)]
    reasons = {name: ENGINES[name].refuses(problem) for name in allowed}
    serving = [name for name, reason in reasons.items() if reason is None]
    if not serving:
        listed = "; ".join(dict.fromkeys(filter(None, reasons.values())))
        other = "" if path == "auto" else ". path='auto' takes another one"
        raise ValueError(f"path {path!r} cannot serve this problem: {listed}{other}")
    chosen = serving[0] if len(serving) == 1 else min(serving, key=lambda name: _cost(name, problem))
    if (
        chosen == "dense"
        and path == "auto"
        and problem.k.size(0) > limits.dense_nodes
        and not problem.mask.product.stored
    ):
        warnings.warn("attention forms this mask as a dense array", PerformanceWarning, stacklevel=4)
    return chosen


@contextmanager
def watched(watch: Callable[[Problem], None]) -> Iterator[None]:
    """Call ``watch`` with every problem that is planned meanwhile."""
    _watching.append(watch)
    try:
        yield
    finally:
        _watching.remove(watch)


def engines_of(call: Callable[[], object]) -> list[list[tuple[str, str, str | float, bool]]]:
    """The engines of each masked attention that a call computes.

    Args:
        call: What to call, such as ``lambda: model(data)``.

    Returns:
        For each attention, for each engine: its name, its path, the reason why it cannot serve or its estimated
        nanoseconds, and whether ``path="auto"`` takes it.
    """
    problems: list[Problem] = []
    with watched(problems.append):
        call()
    chosen = [choose_engine(problem) for problem in problems]
    return [
        [(name, ENGINES[name].path, reason, name == taken) for name, reason in explain(problem).items()]
        for problem, taken in zip(problems, chosen)
    ]


_watching: list[Callable[[Problem], None]] = []


def explain(problem: Problem) -> dict[str, str | float]:
    """For each engine the reason why it cannot serve, or its estimated nanoseconds."""
    return {name: engine.refuses(problem) or _cost(name, problem)[1] for name, engine in ENGINES.items()}


def _cost(name: str, problem: Problem) -> tuple[bool, float]:
    """Whether the engine is a last choice, because it holds too many numbers or multiplies numbers of different graphs,
    of which one may be NaN, by 0; and its estimated nanoseconds.
    """
    work = ENGINES[name].work(problem)
    stored = 0 if problem.mask is None else problem.mask.product.count()
    heavy = work.get("held", 0) > max(limits.numbers_held, limits.per_stored * stored)
    crosses = name == "dense" and len(problem.groups.num_nodes) > 1
    return heavy or crosses, estimate(name, problem.v.device.type, work)
