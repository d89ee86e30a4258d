r"""Attention to the keys with the largest inner products.

Reference: the k-MIP attention of *On k-Maximum-Inner-Product Attention and the Expressive Power of GraphGPS*:

.. math:: \mathrm{out}_i = \sum_{j \in T_i} \mathrm{softmax}_j\!\left(q_i \cdot k_j / \sqrt R\right) v_j

where :math:`T_i` are the k keys of the query's own graph with the largest :math:`q_i \cdot k_j`.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_dropout, check_integer, readable
from pyg_topomask.ops.attention.block_means import MOST_SELECTED, softmax_in_graphs
from pyg_topomask.ops.attention.inputs import check_channels, check_qkv
from pyg_topomask.ops.attention.mask import PatternMask
from pyg_topomask.ops.attention.masked import masked_softmax_attention
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.native.loader import is_transformed
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import batch_of_rows, check_batch, segments
from pyg_topomask.ops.topk.means import kept_means
from pyg_topomask.ops.topk.search import check_finite, find_keys, head_rows, search_keys


def topk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    topk: int,
    batch: Tensor | None = None,
    backend: str = "auto",
    dropout: float = 0.0,
    recompute: bool = False,
) -> Tensor:
    r"""Softmax attention of each query to the ``topk`` keys of its graph with the largest inner products.

    Cost: that of `topk_inner_product`, and :math:`O(N (k + d))` memory. If ``topk`` is at least the size of a graph,
    this is full softmax attention. On CPU, one compiled call serves a batch of graphs of at most 64 nodes. A larger
    graph in the batch may therefore change the results of the others by rounding.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``; scores are scaled by :math:`1 / \sqrt R`.
        v: Values, shape ``[N, H, D]``.
        topk: Number of keys to keep, at least 1.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        backend: Engine of the search: ``"auto"`` takes the fastest one available; `topk_inner_product` names them.
        dropout: Probability of zeroing a normalised weight. 0 by default; callers pass 0 outside training.
        recompute: Keep only the chosen keys for the backward pass, and compute everything else again there.

    Returns:
        Shape ``[N, H, D]``, of the dtype of ``v``.

    Raises:
        TypeError, ValueError: As in `topk_inner_product`; also if queries and keys have no channels (``R = 0``), or
            ``dropout`` is not in [0, 1).
    """
    check_qkv(q, k, v)
    check_channels(q)
    check_dropout(dropout)
    topk = check_integer("topk", topk, 1)
    if _has_fixed_sizes():
        return _attend(q, k, v, topk, batch, backend, dropout, recompute)
    return _attend_eagerly(q, k, v, topk, batch, backend, dropout, recompute)


def _has_fixed_sizes() -> bool:
    """Whether no size may depend on values."""
    return plans.planned() or is_transformed()


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    topk: int,
    batch: Tensor | None,
    backend: str,
    dropout: float,
    recompute: bool,
) -> Tensor:
    batch = batch_of_rows(batch, q)
    check_batch(batch, q.size(0))
    out: Tensor | None = None
    layout, ends = block_layout(batch), segments(batch)
    is_small = plans.once("topk.selected", lambda: layout.groups.width <= MOST_SELECTED)
    if plans.making():  # nothing else depends on the batch alone
        return torch.zeros_like(v)
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = at_least_float32(q, k, v)
        check_finite(q.detach(), k.detach())
        if is_small and backend == "auto" and not dropout and not q.is_cuda:
            out = softmax_in_graphs(q, k, values, layout, q.size(-1) ** -0.5, min(topk, MOST_SELECTED))
        if out is None and _has_fixed_sizes():
            index = find_keys(q.detach(), k.detach(), topk, ends.offsets, ends.offsets, backend)
            seed = draw_seeds(1, device=q.device) if dropout else None
            means = kept_means if q.is_cuda else kept_means.twin
            out = means(q, k, values, index, seed, dropout, q.size(0))
        elif out is None:
            out = _attend_to_pairs(q, k, values, topk, ends.ptr, backend, dropout, recompute)
    return out.to(v.dtype)


_attend_eagerly = torch.compiler.disable(_attend)


def _attend_to_pairs(
    q: Tensor, k: Tensor, v: Tensor, topk: int, ptr: list[int], backend: str, dropout: float, recompute: bool
) -> Tensor:
    heads_q, heads_k = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k))
    kept = search_keys(heads_q, heads_k, topk, ptr, ptr, backend, trim=True)
    if q.is_cuda:
        seed = draw_seeds(1, device=q.device) if dropout else None
        given = q, k, v, kept.keys, seed, dropout, max((b - a for a, b in pairwise(ptr)), default=0)
        if kept_means.refuses(*given) is None:
            return kept_means(*given)
    mask = PatternMask(kept.pattern)

    def attend(*qkv: Tensor) -> Tensor:
        of_q, of_k, of_v = (head_rows(x)[:, None] for x in qkv)
        out = masked_softmax_attention(of_q, of_k, of_v, mask, path="pairwise", dropout=dropout)
        return out.view(q.size(1), q.size(0), v.size(-1)).transpose(0, 1)

    if recompute and torch.is_grad_enabled():
        out = checkpoint(attend, q, k, v, use_reentrant=False, preserve_rng_state=dropout > 0)
    else:
        out = attend(heads_q, heads_k, v)
    return out if readable(q) else out + 0 * q.sum(-1, keepdim=True)  # a query with NaN may have found no keys
