"""Exact isomorphism test of small graphs by colour refinement with individualisation and backtracking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyg_topomask.expressivity.refinement import Array, EncodedGraph, differ, refine, unite

_SEARCH_BUDGET = 1000
"""Largest number of refinements in the search for one isomorphism."""


def isomorphic_pairs(graphs: Sequence[EncodedGraph], tolerance: float, max_nodes: int) -> tuple[int, int]:
    """Number of isomorphic pairs, and of pairs that the exact test cannot decide.

    Each graph is compared with one representative of each isomorphism class found so far.
    """
    classes: list[tuple[EncodedGraph, int]] = []  # a representative and the number of members
    undecided = isomorphic = 0
    for graph in graphs:
        answers = []
        for number, (other, size) in enumerate(classes):
            answers.append(_isomorphic(graph, other, tolerance, max_nodes))
            if answers[-1]:
                isomorphic += size
                classes[number] = (other, size + 1)
                break
        else:
            undecided += sum(size for answer, (_, size) in zip(answers, classes) if answer is None)
            classes.append((graph, 1))
    return isomorphic, undecided


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
        if sizes.max(initial=0) <= 2:  # every class has one node of each graph, which gives the isomorphism
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
