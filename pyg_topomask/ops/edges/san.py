"""Softmax attention over all pairs of a graph, with different scores for edges and for non-edges."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as zero_some
from torch_geometric.utils import softmax

from pyg_topomask.ops.attention.weights import PairWeights, pair_scores, pairs_of_graphs, sorted_pairs
from pyg_topomask.ops.blocks import block_layout, fill_blocks
from pyg_topomask.ops.edges.edge_softmax import edge_scores, typed_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import with_ones
from pyg_topomask.ops.segment import batch_of_rows, in_groups, size_groups
from pyg_topomask.ops.sparse import Pattern, row_maximum, spmm


class PartialSoftmax(NamedTuple):
    """Numerators and denominators of a softmax over a part of each receiver's pairs.

    Both are divided by the exponential of the row's top score, so that parts can be joined to one softmax.
    """

    sums: Tensor
    """Weighted sums of values, shape ``[N, *, D]``."""
    total: Tensor
    """Sums of weights, shape ``[N, *, 1]``; 0 for a receiver without pairs."""
    top: Tensor
    """Largest score, shape ``[N, *, 1]``, without a gradient; −inf for a receiver without pairs."""


def san_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edge: Tensor,
    edge_index: Tensor,
    absent: tuple[Tensor, Tensor] | None = None,
    gamma: float = 1.0,
    batch: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    r"""Softmax attention of each node to its neighbours and, with different scores, to the other nodes of its graph.

    .. math:: \mathrm{out}_i = \frac{\sum_{j \to i} e^{s_{ji}} v_j + \gamma \sum_{j \not\to i} e^{s'_{ji}} v_j}
        {\sum_{j \to i} e^{s_{ji}} + \gamma \sum_{j \not\to i} e^{s'_{ji}}}, \qquad
        s_{ji} = q_i \cdot (k_j \odot e_{ji}) / \sqrt{D}, \quad s'_{ji} = q'_i \cdot k'_j / \sqrt{D}

    Each edge is a separate term, so an edge that is given twice counts twice. Non-edges are pairs of two different
    nodes of the same graph without an edge. They are scored in dense blocks; graphs of similar size share one product.

    Cost per head: :math:`O((E + \sum_g n_g^2) D)` operations and :math:`O(E D + \sum_g n_g^2)` memory. Without
    ``absent``, both are :math:`O(E D)`.

    Args:
        q, k, v: Queries and keys of edges, and values, shape ``[N, H, D]``, float32 or float64.
        edge: Vectors :math:`e` of the edges, shape ``[E, H, D]``, or ``[1, H, D]`` for the same vector on all edges.
        edge_index: Edges ``j → i``, along which ``i`` attends to ``j``, shape ``[2, E]``.
        absent: Queries :math:`q'` and keys :math:`k'` for non-edges, each ``[N, H, D]``; attention to neighbours only
            if :obj:`None`.
        gamma: Weight of non-edges, positive.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[N, H, D]``; zero for a node without any pair.

    Raises:
        TypeError, ValueError: If an edge contains a node that does not exist or, with ``absent``, connects two graphs
            (checked on CPU).
    """
    edges = typed_edges(edge_index, None, None, v.size(0), 1, 0)
    if v.size(0) == 0:
        return v.clone()
    score = edge_scores(q, k, edge, edge_index).index_select(0, edges.number)  # in the order of the pattern
    parts = [softmax_over_entries(edges.pattern, score, v, dropout)]
    if absent is not None:
        parts.append(_non_edge_softmax(*absent, v, log(gamma), edge_index, batch, dropout))
    return join_softmax(parts)


def san_weights(
    q: Tensor,
    k: Tensor,
    edge: Tensor,
    edge_index: Tensor,
    absent: tuple[Tensor, Tensor] | None,
    gamma: float,
    batch: Tensor | None,
) -> PairWeights:
    """Weights that `san_attention` gives to values; arguments as there. Equal edges are one pair."""
    pairs, scores = edge_index.long().flip(0), edge_scores(q, k, edge, edge_index)
    if absent is not None:
        query, key = pairs_of_graphs(batch, q)
        edges = pairs[0] * len(q) + pairs[1]
        others = torch.stack([query, key])[:, (query != key) & ~torch.isin(query * len(q) + key, edges)]
        scores = torch.cat([scores, pair_scores(others, *absent) + log(gamma)])
        pairs = torch.cat([pairs, others], dim=1)
    return sorted_pairs(pairs, softmax(scores, pairs[0], num_nodes=len(q)), len(q))


@once_per_batch
def _edges_and_loops(edge_index: Tensor, batch: Tensor) -> list[Tensor]:
    """Whether each pair (sender, receiver) is an edge, a node with itself, or no pair of nodes of a graph.

    For each group of ``g`` graphs of ``n`` nodes: boolean, ``[g, 1, n, n]``.
    """
    node = torch.arange(batch.numel(), device=batch.device)
    sender, receiver = torch.cat([edge_index.long(), torch.stack([node, node])], dim=1)
    layout = block_layout(batch)
    filled = fill_blocks(layout, sender, receiver, torch.ones(sender.numel(), device=batch.device))
    pairs = zip(filled, layout.groups.inside)
    return [((block > 0) if inside is None else (block > 0) | ~inside)[:, None] for block, inside in pairs]


def _non_edge_softmax(
    q: Tensor, k: Tensor, v: Tensor, log_weight: float, edge_index: Tensor, batch: Tensor | None, dropout: float
) -> PartialSoftmax:
    """Softmax over non-edges. Only one array of all pairs is kept for the backward pass, since others are overwritten.

    As in `sums_in_blocks`, weights are (senders, receivers), and channels come before nodes.
    """
    batch = batch_of_rows(batch, v)
    groups = size_groups(batch)
    hidden = _edges_and_loops(edge_index, batch)

    def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        score = (k @ q.mT.contiguous()).masked_fill_(hidden[number], -torch.inf)  # [g, H, n, n]
        top = score.detach().amax(-2, keepdim=True)
        weight = score.sub_(top.masked_fill(top == -torch.inf, 0)).exp_()
        v = v.mT.contiguous()  # [g, H, D + 1, n]
        sums = v @ weight
        if dropout:
            sums = torch.cat([v[..., :-1, :] @ zero_some(weight, dropout), sums[..., -1:, :]], dim=-2)
        return torch.cat([sums, top], dim=-2).mT

    q = q * q.size(-1) ** -0.5
    sums, total, top = in_groups(attend, groups, q, k, with_ones(v)).split([v.size(-1), 1, 1], dim=-1)
    return PartialSoftmax(sums, total, top.detach() + log_weight)


def join_softmax(parts: Sequence[PartialSoftmax]) -> Tensor:
    """Softmax over the pairs of all parts, shape ``[N, *, D]``; zero for a receiver without pairs."""
    top = torch.stack([part.top for part in parts]).amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    scales = [(part.top - top).exp() for part in parts]  # the largest is 1, so the denominator is at least 1
    sums = torch.stack([part.sums * scale for part, scale in zip(parts, scales)]).sum(0)
    total = torch.stack([part.total * scale for part, scale in zip(parts, scales)]).sum(0)
    return sums / total.masked_fill(total == 0, 1)


def softmax_over_entries(pattern: Pattern, scores: Tensor, v: Tensor, dropout: float = 0.0) -> PartialSoftmax:
    """Softmax over the entries of each row of a pattern.

    Args:
        pattern: Positions of the entries; rows are receivers, columns are senders.
        scores: Scores of the entries, shape ``[nnz, H]``.
        v: Values of the senders, shape ``[num_cols, H, D]``.
        dropout: Probability of zeroing a weight in the numerator.

    Returns:
        Parts of shapes ``[num_rows, H, D]``, ``[num_rows, H, 1]`` and ``[num_rows, H, 1]``.
    """
    top = row_maximum(pattern, scores)  # a factor that cancels
    weight = (scores - top.index_select(0, pattern.row)).exp()
    total = spmm(pattern, weight, v.new_ones(pattern.num_cols, v.size(1), 1))
    return PartialSoftmax(spmm(pattern, zero_some(weight, dropout) if dropout else weight, v), total, top[..., None])
