r"""Attention to the keys with the largest inner products.

Reference: the k-MIP attention of *On k-Maximum-Inner-Product Attention and the Expressive Power of GraphGPS*:

.. math:: \mathrm{out}_i = \sum_{j \in T_i} \mathrm{softmax}_j\!\left(q_i \cdot k_j / \sqrt R\right) v_j

where :math:`T_i` are the k keys of the query's own graph with the largest :math:`q_i \cdot k_j`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropped
from torch.utils.checkpoint import checkpoint

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_integer, readable
from pyg_topomask.ops.attention import choice
from pyg_topomask.ops.attention.block_means import MOST_SELECTED, softmax_in_graphs
from pyg_topomask.ops.attention.inputs import check_channels, check_qkv
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.mask import PatternMask
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.blocks import BlockLayout, layout_of
from pyg_topomask.ops.native.loader import is_transformed
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import check_batch, segments
from pyg_topomask.ops.topk.backends import Problem as SearchProblem
from pyg_topomask.ops.topk.backends import find
from pyg_topomask.ops.topk.search import Kept, check_finite, head_rows, search_keys


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
        TypeError, ValueError: As in `topk_inner_product`; also if queries and keys have no channels (``R = 0``).
    """
    check_qkv(q, k, v)
    check_channels(q)
    if plans.planned() and batch is not None:
        return _attend_planned(q, k, v, topk, batch, backend, dropout)
    return _attend_eagerly(q, k, v, topk, batch, backend, dropout, recompute)


@torch.compiler.disable
def _attend_eagerly(
    q: Tensor, k: Tensor, v: Tensor, topk: int, batch: Tensor | None, backend: str, dropout: float, recompute: bool
) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = at_least_float32(q, k, v)
        topk = check_integer("topk", topk, 1)
        if batch is not None:
            check_batch(batch, q.size(0))
        if backend == "auto" and not dropout and not q.is_cuda and not is_transformed():
            layout = layout_of(batch, q)
            if layout.groups.width <= MOST_SELECTED:
                check_finite(q.detach(), k.detach())
                out = _attend_in_blocks(q, k, values, topk, layout)
                if out is not None:
                    return out.to(v.dtype)
        recompute = recompute and torch.is_grad_enabled() and not is_transformed()  # they have no rules for checkpoints
        heads_q, heads_k = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k))
        kept = search_keys(heads_q, heads_k, topk, batch, batch, backend, trim=True)
        if not recompute:  # otherwise, these copies would be kept besides the originals
            q, k = heads_q, heads_k

        def attend(q: Tensor, k: Tensor, values: Tensor) -> Tensor:
            out = _attend(kept, head_rows(q) * q.size(-1) ** -0.5, head_rows(k), head_rows(values), dropout)
            return out.view(q.size(1), q.size(0), values.size(-1)).transpose(0, 1)

        if recompute:
            out = checkpoint(attend, q, k, values, use_reentrant=False, preserve_rng_state=dropout > 0)
        else:
            out = attend(q, k, values)
        if not readable(q):  # a query with NaN may have found no keys
            out = out + 0 * q.sum(-1, keepdim=True)
    return out.to(v.dtype)


def _attend_planned(q: Tensor, k: Tensor, v: Tensor, topk: int, batch: Tensor, backend: str, dropout: float) -> Tensor:
    """The same without a size that depends on values: each query has ``topk`` places for keys."""
    offsets, layout = segments(batch).offsets, layout_of(batch, q)
    is_small = plans.once("selected", lambda: layout.groups.width <= MOST_SELECTED) and not q.is_cuda
    if plans.making():  # nothing else depends on the batch alone
        return torch.zeros_like(v)
    with torch.autocast(q.device.type, enabled=False):
        q, k, values = at_least_float32(q, k, v)
        if is_small and backend == "auto" and not dropout and not is_transformed():
            out = _attend_in_blocks(q, k, values, topk, layout)
            if out is not None:
                return out.to(v.dtype)
        index = _search(q.detach(), k.detach(), topk, offsets, backend).transpose(0, 1)  # [N, H, topk]
        heads = torch.arange(q.size(1), device=q.device)[:, None]
        exists, place = index >= 0, (index.clamp(min=0) * q.size(1) + heads).flatten()
        key, value = (x.flatten(0, 1).index_select(0, place).unflatten(0, index.shape) for x in (k, values))
        score = (q[:, :, None] * key).sum(-1) * q.size(-1) ** -0.5
        weight = dropped(score.masked_fill(~exists, -torch.inf).softmax(-1), dropout)
        return (weight[..., None] * value).sum(2).to(v.dtype)


@torch.library.custom_op("topomask::topk_search", mutates_args=())
def _search(q: Tensor, k: Tensor, topk: int, offsets: Tensor, backend: str) -> Tensor:
    """The keys ``[H, N, topk]`` of each query, −1 where its graph has no more."""
    ptr = offsets.tolist()
    q, k = (x.transpose(0, 1).contiguous() for x in (q, k))
    return find(SearchProblem(q, k, ptr, ptr, topk), backend)


@_search.register_fake
def _(q: Tensor, k: Tensor, topk: int, offsets: Tensor, backend: str) -> Tensor:
    return q.new_empty(q.size(1), q.size(0), topk, dtype=torch.int64)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, topk: int, layout: BlockLayout) -> Tensor | None:
    """Search and attention in one compiled call, which serves small graphs; :obj:`None` if it does not serve."""
    return softmax_in_graphs(q, k, v, layout, q.size(-1) ** -0.5, min(topk, MOST_SELECTED))


def _attend(kept: Kept, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Softmax attention on the kept pairs, whose heads follow each other, ``[H N, *] → [H N, D]``."""
    heads = q[:, None], k[:, None], v[:, None]
    problem = Problem(Kernel("softmax"), *heads, PatternMask(kept.pattern), dropout=dropout)
    return choice.attend(problem, "pairwise")[:, 0]
