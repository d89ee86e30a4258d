"""Exact isomorphism of small graphs, by refinement, individual colours and backtracking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyg_topomask.expressivity.refinement import Array, EncodedGraph, differ, refine, unite

_SEARCH_BUDGET = 1000
"""Refinements that the search for one isomorphism may take."""


def isomorphic_pairs(graphs: Sequence[EncodedGraph], tolerance: float, max_nodes: int) -> tuple[int, int]:
    """Pairs that are isomorphic, and pairs that the exact test leaves open; each graph meets one of each kind."""
    kinds: list[tuple[EncodedGraph, int]] = []  # a representative and how many there are
    open_pairs = isomorphic = 0
    for graph in graphs:
        answers = []
        for place, (other, size) in enumerate(kinds):
            answers.append(_isomorphic(graph, other, tolerance, max_nodes))
            if answers[-1]:
                isomorphic += size
                kinds[place] = (other, size + 1)
                break
        else:
            open_pairs += sum(size for answer, (_, size) in zip(answers, kinds) if answer is None)
            kinds.append((graph, 1))
    return isomorphic, open_pairs


def _isomorphic(first: EncodedGraph, second: EncodedGraph, tolerance: float, max_nodes: int) -> bool | None:
    """Whether two graphs with their encodings are isomorphic; :obj:`None` beyond the size limit or the budget."""
    union = unite([first, second], tolerance, exact_only=False)
    left = _SEARCH_BUDGET

    def search(color: Array) -> bool | None:
        nonlocal left
        if left == 0:
            return None
        left -= 1
        color = refine(union, color.copy(), None)
        if differ(union.graph, color):
            return False
        sizes = np.bincount(color)
        if sizes.max(initial=0) <= 2:  # one node of each graph in every class: the isomorphism
            return True
        if first.num_nodes > max_nodes:
            return None
        members = np.flatnonzero(color == np.where(sizes > 2, sizes, color.size + 1).argmin())
        answer: bool | None = False
        for node in members[union.graph[members] == 1]:
            chosen = color.copy()
            chosen[[members[0], node]] = sizes.size
            found = search(chosen)
            if found:
                return True
            answer = None if found is None else answer
        return answer

    return search(union.color)
