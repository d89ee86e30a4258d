"""Table of the engines that find the keys with the largest inner products.

Each engine returns the reason why it does not support a problem, or :obj:`None`. ``"auto"`` takes the first engine that
supports the problem and is fast for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.checks import check_choice
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.topk import cpp, triton
from pyg_topomask.ops.topk.blockwise import best_keys

# Number of keys from which a tree may pay off (measured; d = 10), and the share of visited leaves above which it does
# not.
_PRUNE_FROM = 5_000
_MAX_VISIT = 0.55
_DENSE_KEYS = 512


class Problem(NamedTuple):
    """Queries and keys of a batch of graphs, head by head."""

    q: Tensor
    """Shape ``[H, Nq, d]``, contiguous, without gradient, float32 or float64."""
    k: Tensor
    """Shape ``[H, Nk, d]``."""
    ptr_q: list[int]
    """First query of each graph, followed by ``Nq``."""
    ptr_k: list[int]
    """First key of each graph, followed by ``Nk``."""
    topk: int
    """Number of keys to keep, at least 1."""

    @property
    def largest(self) -> int:
        """Number of keys of the largest graph."""
        return max((b - a for a, b in pairwise(self.ptr_k)), default=0)

    def graphs(self) -> Iterator[tuple[slice, slice]]:
        """Rows of queries and of keys, graph by graph, without graphs that lack either."""
        for (a, b), (c, d) in zip(pairwise(self.ptr_q), pairwise(self.ptr_k)):
            if b > a and d > c:
                yield slice(a, b), slice(c, d)

    def no_index(self) -> Tensor:
        """Shape ``[H, Nq, topk]`` filled with −1."""
        return torch.full((*self.q.shape[:2], self.topk), -1, dtype=torch.int64, device=self.q.device)


class Engine(NamedTuple):
    """One search method."""

    refuses: Callable[[Problem], str | None]
    """Returns why the engine does not support a problem, or :obj:`None`."""
    search: Callable[[Problem], Tensor]
    """Returns the index of each kept key, shape ``[H, Nq, topk]``, −1 for missing keys; lower indices win ties."""
    pays: Callable[[Problem], str | None] = lambda problem: None
    """Returns why ``"auto"`` does not take the engine although it is supported, or :obj:`None`."""
    unforced: Callable[[Problem], Tensor] | None = None
    """Search used under ``"auto"``, if it is a different one."""


def find(problem: Problem, backend: str) -> Tensor:
    """Indices ``[H, Nq, topk]`` from the named engine, or from the first engine that ``"auto"`` accepts.

    Raises:
        ValueError: If there is no such engine, or it does not support the problem.
    """
    if backend != "auto":
        check_choice("backend", backend, BACKENDS)
        reason = ENGINES[backend].refuses(problem)
        if reason is not None:
            raise ValueError(f"backend {backend!r} cannot be used: {reason}; backend='auto' chooses another one")
        return ENGINES[backend].search(problem)
    engine = next(engine for engine in ENGINES.values() if _declines(engine, problem) is None)
    return (engine.unforced or engine.search)(problem)


def explain(problem: Problem) -> dict[str, str | None]:
    """For each engine the reason why ``"auto"`` skips it, or :obj:`None`; ``"auto"`` takes the first with
    :obj:`None`.
    """
    return {name: _declines(engine, problem) for name, engine in ENGINES.items()}


def _declines(engine: Engine, problem: Problem) -> str | None:
    return engine.pays(problem) or engine.refuses(problem)


def _native_refuses(problem: Problem) -> str | None:
    if problem.q.device.type != "cpu":
        return f"it runs on CPU, and the queries are on {problem.q.device}"
    if problem.q.size(-1) == 0:
        return "keys have no numbers (d = 0)"
    if problem.topk > cpp.MAX_TOPK and problem.largest > cpp.MAX_TOPK:
        return f"it keeps at most {cpp.MAX_TOPK} keys (got topk = {problem.topk})"
    if max(problem.largest, problem.ptr_q[-1]) >= 2**31:
        return "a graph has 2^31 keys or more"
    return loader.missing("topk")


def _native_search(prune_from: int | None, max_visit: float) -> Callable[[Problem], Tensor]:
    return lambda problem: cpp.search(*problem, prune_from, max_visit)[0]


def _dense_search(problem: Problem) -> Tensor:
    index = problem.no_index()
    for queries, keys in problem.graphs():
        scores = problem.q[:, queries] @ problem.k[:, keys].transpose(1, 2)  # [H, nq, nk]
        found = scores.sort(dim=-1, descending=True, stable=True)[1][..., : problem.topk]
        index[:, queries, : found.size(-1)] = found + keys.start
    return index


def _torch_search(problem: Problem) -> Tensor:
    index = problem.no_index()
    for head in range(problem.q.size(0)):
        for queries, keys in problem.graphs():
            best_keys(problem.q[head, queries], problem.k[head, keys], index[head, queries], keys.start)
    return index


def _too_small_for_a_tree(problem: Problem) -> str | None:
    if problem.largest < _PRUNE_FROM:
        return f"a tree pays from {_PRUNE_FROM} keys on, and the largest graph has {problem.largest}"
    return None


def _too_large_for_dense(problem: Problem) -> str | None:
    if problem.largest > _DENSE_KEYS:
        return f"it forms all scores of a graph, and the largest has {problem.largest} keys; the limit is {_DENSE_KEYS}"
    return None


ENGINES = {
    "triton": Engine(triton.refuses, triton.search, triton.pays),
    "pruned": Engine(
        _native_refuses, _native_search(0, 1.0), _too_small_for_a_tree, _native_search(_PRUNE_FROM, _MAX_VISIT)
    ),
    "cpp": Engine(_native_refuses, _native_search(None, 1.0)),
    "dense": Engine(_too_large_for_dense, _dense_search),
    "torch": Engine(lambda problem: None, _torch_search),
}
"""Engines by name, in the order in which ``"auto"`` tries them."""

BACKENDS = ("auto", *ENGINES)
