"""Table of the engines that find the keys with the largest inner products.

Each engine returns the reason why it does not support a problem, or :obj:`None`. ``"auto"`` takes the first engine that
supports the problem and is fast for it.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.checks import check_choice
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.topk import cpp, triton
from pyg_topomask.ops.topk.blockwise import SMALL, best_keys, best_keys_of_many
from pyg_topomask.typing import PerformanceWarning

# Number of keys from which compiled code tries a tree of them (measured; d = 10), and the share of visited leaves above
# which it does without.
_PRUNE_FROM = 5_000
_MAX_VISIT = 0.55


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
    engine = next(x for x in ENGINES.values() if x.pays(problem) is None and x.refuses(problem) is None)
    if engine is ENGINES["torch"] and problem.q.is_cuda:
        reason = ENGINES["triton"].refuses(problem)
        warnings.warn(f"k-MIP is searched in plain torch, which is slower: {reason}", PerformanceWarning, stacklevel=5)
    return engine.search(problem)


def _native_refuses(problem: Problem) -> str | None:
    if problem.q.device.type != "cpu":
        return f"it runs on CPU, and the queries are on {problem.q.device}"
    if problem.q.size(-1) == 0:
        return "keys have no numbers (d = 0)"
    if problem.topk > cpp.MAX_TOPK and problem.largest > cpp.MAX_TOPK:
        return f"it keeps at most {cpp.MAX_TOPK} keys (got topk = {problem.topk})"
    return loader.missing("topk")


def _torch_search(problem: Problem) -> Tensor:
    index = problem.no_index()
    small = []
    for queries, keys in problem.graphs():
        if max(queries.stop - queries.start, keys.stop - keys.start) <= SMALL.get(problem.q.device.type, 0):
            small.append((queries.start, queries.stop, keys.start, keys.stop))
        else:
            best_keys(problem.q[:, queries], problem.k[:, keys], index[:, queries], keys.start)
    if small:
        best_keys_of_many(problem.q, problem.k, index, tuple(small))
    return index


ENGINES = {
    "triton": Engine(triton.refuses, triton.search, triton.pays),
    "cpp": Engine(_native_refuses, lambda problem: cpp.search(*problem, _PRUNE_FROM, _MAX_VISIT)[0]),
    "torch": Engine(lambda problem: None, _torch_search),
}
"""Engines by name, in the order in which ``"auto"`` tries them."""

BACKENDS = ("auto", *ENGINES)
