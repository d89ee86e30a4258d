"""Exact softmax attention within each graph of a batch, without an array over all pairs of the batch."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pyg_topomask import plan as plans
from pyg_topomask.ops.attention.block_means import softmax_in_graphs
from pyg_topomask.ops.blocks import BlockLayout, layout_of
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.segment import SizeGroups, batch_of_rows, in_groups, ragged_ranges

# Nodes of the largest graph up to which compiled code serves attention without a bias.
_MOST_COMPILED = 256


def segment_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    r"""Softmax attention of each node to the nodes of its own graph, with a bias for each pair.

    .. math:: \mathrm{out}_i = \sum_j \mathrm{softmax}_j\!\left(q_i \cdot k_j / \sqrt{R} + b_{ij}\right) v_j

    Compiled code computes small graphs one by one on CPU. Otherwise, graphs of similar size share one call of torch's
    fused kernel (`SizeGroups`).

    Cost: :math:`O(\sum_g n_g^2 (R + D))` operations and :math:`O(N (R + D))` memory. On CPU, dropout or a bias that
    requires a gradient also keeps the :math:`\sum_g n_g^2` weights.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        bias: Term that is added to the scores, shape ``[P, H]``, or ``[P, 1]`` if all heads share it. It has one row
            for each of the :math:`P = \sum_g n_g^2` pairs, in the order of `all_pairs`. None if :obj:`None`.
        dropout: Probability of zeroing a normalised weight.
        scale: Factor of the scores instead of :math:`1 / \sqrt{R}`.

    Returns:
        Shape ``[N, H, D]``.

    Raises:
        ValueError: If ``bias`` does not have one row per pair.
    """
    layout = layout_of(batch, q)
    groups = layout.groups
    scale = q.size(-1) ** -0.5 if scale is None else scale
    is_small = plans.once("small", lambda: _is_small(groups))  # a plan serves training and evaluation
    if bias is None and not dropout and is_small:
        means = softmax_in_graphs(q, k, v, layout, scale)
        if means is not None:
            return means
    biases: list[Tensor] = []
    if bias is not None:
        if not plans.reading():
            check_pair_bias(bias, groups.num_nodes, q.size(1))
        places = _places(batch_of_rows(batch, q), layout)
        placed = bias.new_zeros(sum(layout.lengths), bias.size(1)).index_copy(0, places, bias)
        biases = layout.split(placed.to(q.dtype))

    def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inside = groups.inside[number]
        added = None if inside is None else inside[:, None, :1]  # the first node, which no graph lacks, sees all nodes
        if biases:
            given = biases[number].expand(-1, q.size(1), -1, -1)
            added = given if added is None else given.masked_fill(~added, -torch.inf)
        return scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout, scale=scale)

    if not loader.is_transformed():
        return in_groups(attend, groups, q, k, v)
    with sdpa_kernel(SDPBackend.MATH):  # the others have no derivative in forward mode
        return in_groups(attend, groups, q, k, v)


def _is_small(groups: SizeGroups) -> bool:
    return max(groups.num_nodes, default=0) <= _MOST_COMPILED


@once_per_batch
def _places(batch: Tensor, layout: BlockLayout) -> Tensor:
    """Place of each pair of `all_pairs` among the entries of the blocks of a layout, ``[P]``."""
    query, key = all_pairs(batch)
    return layout.row_start.index_select(0, query) + layout.column.index_select(0, key)


def all_pairs(batch: Tensor) -> Tensor:
    """Ordered pairs of nodes in the same graph, sorted by graph and, within each graph, in row-major order.

    If the nodes of a graph with ``n`` nodes are counted from 0, the pair ``(i, j)`` is number ``i * n + j`` of its
    graph. Therefore, an attribute ``[n * n, H]`` on each graph collates to the bias of the batch.

    Args:
        batch: Graph of each node, sorted, shape ``[N]``.

    Returns:
        Pairs (query, key), shape ``[2, P]``, int64.
    """
    size = torch.bincount(batch)
    first = size.cumsum(0) - size
    return torch.stack(ragged_ranges(first[batch], size[batch]))


def check_pair_bias(bias: Tensor, num_nodes: list[int], heads: int) -> None:
    """Refuse a bias that is not ``[P, H]`` or ``[P, 1]`` for graphs of these sizes. Raises ValueError and TypeError."""
    if not bias.is_floating_point():
        raise TypeError(f"the bias of pairs must be floating point (got {bias.dtype})")
    num_pairs = sum(n * n for n in num_nodes)
    if bias.dim() != 2 or bias.size(0) != num_pairs or bias.size(1) not in (1, heads):
        raise ValueError(
            f"the bias must have one row for each of the n * n ordered pairs of each graph, shape [{num_pairs}, "
            f"{heads}] or [{num_pairs}, 1] (got {list(bias.shape)})"
        )
