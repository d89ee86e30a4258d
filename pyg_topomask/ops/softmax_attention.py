"""Exact softmax attention within each graph of a batch: no padding, and no array over the pairs of the whole batch."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import segments
from pyg_topomask.ops.sparse import permute_rows


class SizeGroups(NamedTuple):
    """A batch's graphs, those of equal size put together."""

    order: Tensor | None
    """Nodes sorted by the size of their graph, shape ``[N]``; :obj:`None` if they are so already."""
    place: Tensor | None
    """Inverse of `order`."""
    graphs: list[list[int]]
    """Graphs of each group, empty ones left out."""
    sizes: list[int]
    """Number of nodes of each graph in the group."""
    num_nodes: list[int]
    """Number of nodes of every graph, also of empty ones."""


@once_per_batch
def size_groups(batch: Tensor) -> SizeGroups:
    """Groups of a batch vector that `check_batch` accepts; built once per batch."""
    ptr = segments(batch).ptr
    size = [b - a for a, b in zip(ptr, ptr[1:])]
    by_size = sorted((graph for graph in range(len(size)) if size[graph]), key=size.__getitem__)
    groups = [list(group) for _, group in groupby(by_size, key=size.__getitem__)]
    order = place = None
    if by_size != sorted(by_size):
        order = torch.cat([torch.arange(ptr[g], ptr[g + 1]) for g in by_size]).to(batch.device)
        place = order.argsort()
    return SizeGroups(order, place, groups, [size[group[0]] for group in groups], size)


def segment_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None = None, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    r"""Softmax attention of each node to the nodes of its own graph, with a bias for each pair.

    .. math:: \mathrm{out}_i = \sum_j \mathrm{softmax}_j\!\left(q_i \cdot k_j / \sqrt{R} + b_{ij}\right) v_j

    Graphs of equal size share one call of torch's fused kernel. On 2 cores this was as fast as a loop over the graphs
    where all sizes differ, 2.3 times faster where they repeat, and faster than groups of similar size with padding.

    Cost: :math:`O(\sum_g n_g^2 (R + D))` operations and :math:`O(N (R + D))` memory; on CPU a bias that requires a
    gradient, and dropout, keep the :math:`\sum_g n_g^2` weights as well.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        bias: Added to the scores, shape ``[P, H]``, or ``[P, 1]`` for all heads alike: one row for each of the
            :math:`P = \sum_g n_g^2` pairs, in the order of `all_pairs`.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[N, H, D]``.

    Raises:
        ValueError: If ``bias`` does not have one row per pair.
    """
    if batch is None:
        groups = SizeGroups(None, None, [[0]] if q.size(0) else [], [q.size(0)], [q.size(0)])
    else:
        groups = size_groups(batch)
    biases: tuple[Tensor, ...] = ()
    if bias is not None:
        check_pair_bias(bias, groups.num_nodes, q.size(1))
        biases = bias.to(q.dtype).split([n * n for n in groups.num_nodes])
    if not groups.graphs:
        return v.clone()
    rows = [len(graphs) * n for graphs, n in zip(groups.graphs, groups.sizes)]
    parts = [permute_rows(x, groups.order, groups.place).split(rows) for x in (q, k, v)]
    out = []
    for graphs, n, *qkv in zip(groups.graphs, groups.sizes, *parts):
        heads_first = (x.unflatten(0, (len(graphs), n)).transpose(1, 2) for x in qkv)  # [graphs, H, n, ·]
        added = None
        if bias is not None:
            added = torch.stack([biases[graph] for graph in graphs])
            added = added.unflatten(1, (n, n)).permute(0, 3, 1, 2).expand(-1, q.size(1), -1, -1)
        result = scaled_dot_product_attention(*heads_first, attn_mask=added, dropout_p=dropout)
        out.append(result.transpose(1, 2).flatten(0, 1))
    return permute_rows(torch.cat(out), groups.place, groups.order)


def segment_softmax_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`segment_softmax_attention` from its definition with dense ``[N, N]`` scores, for tests."""
    batch = torch.zeros(q.size(0), dtype=torch.long) if batch is None else batch
    score = torch.einsum("ihr,jhr->ijh", q, k) / q.size(-1) ** 0.5
    if bias is not None:
        row, col = all_pairs(batch)
        score = score.index_put((row, col), bias.expand(-1, q.size(1)), accumulate=True)
    score = score.masked_fill((batch[:, None] != batch)[..., None], -torch.inf)
    return torch.einsum("ijh,jhd->ihd", score.softmax(1), v)


def all_pairs(batch: Tensor) -> Tensor:
    """Ordered pairs of nodes that share a graph: rows of a bias per pair, graph after graph, row-major in each.

    The pair of the nodes ``i`` and ``j`` of a graph with ``n`` nodes, counted from 0 in the graph, is its row
    ``i * n + j``. So a ``[n * n, H]`` attribute on each graph collates to the bias of the batch.

    Args:
        batch: Graph of each node, sorted, shape ``[N]``.

    Returns:
        Pairs (query, key), shape ``[2, P]``, int64.
    """
    size = torch.bincount(batch)
    first = size.cumsum(0) - size
    count = size[batch]
    row = torch.repeat_interleave(count)
    begin = (count.cumsum(0) - count)[row]
    col = torch.arange(row.numel(), device=row.device) - begin + first[batch][row]
    return torch.stack([row, col])


def check_pair_bias(bias: Tensor, num_nodes: list[int], heads: int) -> None:
    """Refuse a bias that is not ``[P, H]`` or ``[P, 1]`` for graphs of so many nodes. Raises ValueError, TypeError."""
    if not bias.is_floating_point():
        raise TypeError(f"the bias of pairs must be floating point (got {bias.dtype})")
    num_pairs = sum(n * n for n in num_nodes)
    if bias.dim() != 2 or bias.size(0) != num_pairs or bias.size(1) not in (1, heads):
        raise ValueError(
            f"the bias of pairs must have shape [{num_pairs}, {heads}], a row for each of the n * n ordered pairs of "
            f"each graph, or [{num_pairs}, 1] (got {list(bias.shape)})"
        )
