"""The normalised weights of attention, pair by pair, for inspection and explanations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyg_topomask.ops.attention.full_softmax import all_pairs
from pyg_topomask.ops.attention.kernels import by_head
from pyg_topomask.ops.attention.mask import rows_of
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.segment import batch_of_rows
from pyg_topomask.ops.sparse import Pattern, sampled_product, spmm

PairWeights: TypeAlias = tuple[Tensor, Tensor]
"""Pairs (query, key), ``[2, P]``, sorted, and their weights, ``[P, H]``."""

Rows: TypeAlias = Sequence[int] | Tensor | None
"""Numbers of the chosen queries; all if :obj:`None`."""


def pair_weights(problem: Problem, rows: Rows = None) -> PairWeights:
    r"""The weights :math:`M_{ij} K_{ij} / S_i` of all pairs in the support of the mask, without dropout.

    They are the numbers that multiply the values. Cost per head: :math:`O(P R)` for ``P`` pairs.

    Args:
        problem: The problem; its values are not read, apart from their dtype.
        rows: The queries, ascending; all if :obj:`None`. Only their pairs are listed.

    Returns:
        Pairs and weights. Pairs are those of the mask's support, or those of all nodes of a graph if it has none.
    """
    problem = problem.wide
    if rows is None:
        return sorted_pairs(*_weights(problem), len(problem.k))
    parts = [_weights(replace(problem, q=problem.q[row : row + 1], rows=(row, row + 1))) for row in rows]
    if not parts:
        return torch.zeros(2, 0, dtype=torch.int64, device=problem.k.device), problem.k.new_zeros(0, problem.k.size(1))
    pairs, weights = zip(*parts)
    return sorted_pairs(torch.cat(pairs, 1), torch.cat(weights), len(problem.k))


def pair_scores(pairs: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Scaled inner products ``[P, H]`` of queries and keys ``[N, H, R]``, for pairs ``[2, P]``."""
    return sampled_product(Pattern(pairs[0], pairs[1], len(q), len(k)), q * q.size(-1) ** -0.5, k)


def pairs_of_graphs(batch: Tensor | None, x: Tensor) -> Tensor:
    """All pairs (query, key) of nodes of the same graph, ``[2, P]``; ``x`` has a row for each node."""
    return all_pairs(batch_of_rows(batch, x))


def sorted_pairs(pairs: Tensor, weights: Tensor, num_nodes: int) -> PairWeights:
    """Pairs in the order of queries, then of keys; equal pairs are added up."""
    key, place = torch.unique(pairs[0] * num_nodes + pairs[1], return_inverse=True)
    added = weights.new_zeros(key.numel(), *weights.shape[1:]).index_add(0, place, weights)
    return torch.stack([key // num_nodes, key % num_nodes]), added


def pairs_of_rows(pairs: Tensor, weights: Tensor, rows: Rows) -> PairWeights:
    """The pairs of these queries; all if :obj:`None`."""
    if rows is None:
        return pairs, weights
    kept = torch.isin(pairs[0], torch.as_tensor(rows, dtype=torch.int64, device=pairs.device))
    return pairs[:, kept], weights[kept]


def _weights(problem: Problem) -> PairWeights:
    pattern, entries, bounds = _listed(problem)
    q, k = (pattern.arrange(x) for x in (problem.q, problem.k))
    kernel, size = problem.kernel.on_pairs(pattern, bounds, q, k, *(problem.edges or ())[:2])
    entries, bounds = by_head(entries), by_head(bounds)
    weight, total, squares = entries * kernel, bounds * size, size.detach().square() * (bounds != 0)  # [P, H]
    ones = weight.new_ones(pattern.num_cols, weight.size(1), 1)
    sums, sizes, norms = (pattern.restore(spmm(pattern, x, ones)) for x in (weight, total, squares))  # [rows, H, 1]
    denominator = sums if problem.signed else sizes
    norm = None if problem.errors is None else norms.sqrt()
    vanished = problem.vanished(denominator, sizes.detach(), norm)
    factor = torch.where(vanished, 0, 1 / torch.where(vanished, 1, denominator)).squeeze(-1)  # [rows, H]
    row, col = (x.long() for x in pattern.nodes)
    first = 0 if problem.rows is None else problem.rows[0]
    return torch.stack([row + first, col]), weight * factor.index_select(0, row)


def _listed(problem: Problem) -> tuple[Pattern, Tensor, Tensor]:
    """Pairs of the problem's rows, and their entries of mask and bounding mask, ``[P]`` or ``[P, H]``."""
    if problem.mask is not None and problem.support is not None:
        return problem.pairs().evaluated()
    if problem.rows is None:
        row, col = pairs_of_graphs(problem.batch, problem.k)
    else:
        graph = batch_of_rows(problem.batch, problem.k)
        col = (graph == graph[problem.rows[0]]).nonzero().squeeze(1)
        row = torch.zeros_like(col)
    pattern = Pattern(row, col, len(problem.q), len(problem.k))
    if problem.mask is None:
        ones = problem.v.new_ones(pattern.nnz)
        return pattern, ones, ones
    entries = _entries(problem, problem.mask, row, col)
    return pattern, entries, entries if problem.owns_bound else _entries(problem, problem.bound, row, col)


def _entries(problem: Problem, mask: Any, row: Tensor, col: Tensor) -> Tensor:
    """Entries of a mask without a support, by products with the transposed mask."""
    rows = rows_of(mask, torch.arange(*(problem.rows or (0, mask.num_nodes)), device=mask.device))
    return rows[col, ..., row].to(problem.v.dtype)
