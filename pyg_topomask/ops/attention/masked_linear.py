r"""Attention under a topological mask that is known by its products.

.. math:: \mathrm{out}_i = \frac{\sum_j M_{ij} K(q_i, k_j)\, v_j}{\sum_j M_{ij} K(q_i, k_j)}

Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
arXiv:2107.07999, Definition 2.1, Lemma 3.1 and Algorithm 1; the pairwise path is Reid et al. 2024, arXiv:2410.03462,
Algorithm 1, evaluated on the support of the mask.

What makes a mask fast is said in `pyg_topomask.ops.attention.mask`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.attention.full_softmax import segment_softmax_attention
from pyg_topomask.ops.attention.inputs import at_least_float32, check_qkv, with_ones
from pyg_topomask.ops.attention.mask import (
    MOST_PAIRS,
    attend_in_blocks,
    check_mask,
    dense_entries,
    heads_of,
    is_dense,
    prefers_blocks,
    supported_pairs,
)
from pyg_topomask.ops.attention.masked_softmax import exp_below, softmax_in_block, softmax_on_pairs
from pyg_topomask.ops.numerics import divide, non_negative, power_of_two, row_magnitude, with_magnitude
from pyg_topomask.ops.segment import check_batch, segment_linear_attention, segment_max
from pyg_topomask.ops.sparse import sampled_product, spmm
from pyg_topomask.typing import PerformanceWarning

PATHS = ("auto", "factored", "pairwise", "blocks", "dense")

# Numbers in one slice of the factored path's N × m(d+1) intermediate, and the fewest columns worth one product.
_SLICE_NUMEL = 2**24
_SLICE_COLUMNS = 64

# Scoring a pair costs as much as this many features more than it has, and a multiply-add in a product with the mask as
# much as this many on pairs: measured on CPU for 4 to 256 features, 4 to 32 channels and 10 to 1,600 pairs a node.
_PAIR_OVERHEAD = 96
_FACTORED_COST = 4


def masked_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, batch: Tensor | None = None, path: str = "auto"
) -> Tensor:
    r"""Attention with the kernel :math:`K(q_i, k_j) = q_i \cdot k_j` of features that a feature map has produced.

    Where the denominator vanishes, that is where it is at most machine epsilon times the sum of the absolute values
    of its terms, the output is zero with zero gradient, whatever the scale of ``mask``, ``q`` and ``k``. So it is where
    all terms are next to underflow (below 2^-112 in float32), as random features of very long queries are.
    The factored path takes the products of the mask with single features for its terms, so there a denominator of
    rounding alone is found unless it cancels within one of them.

    Cost, per head, with ``P`` pairs in the support of the mask and ``T`` multiply-adds in one product ``mask @ x``:
    factored :math:`O(T R D)` with at most 64 columns or 2^24 numbers of the intermediate in memory, recomputed in the
    backward pass; pairwise :math:`O(P (R + D))`; blocks :math:`O(S (R + D))` with :math:`S = \sum_g n_g^2` the pairs
    within graphs; dense :math:`O(N^2 (R + D))`; without a mask :math:`O(N R D)`.

    Args:
        q, k: Queries and keys after the feature map, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. A mask tells graphs apart itself.
        path: ``"factored"`` multiplies by the mask, ``"pairwise"`` scores the pairs in its support, ``"blocks"`` all
            pairs within graphs, ``"dense"`` forms the whole mask; ``"auto"`` weighs the work of each and takes the
            least. All give the same numbers.

    Returns:
        Shape ``[N, H, D]``, of the dtype of ``v``. Half precision inputs are computed in float32.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted or the mask cannot serve the path.
    """
    check_qkv(q, k, v)
    if path not in PATHS:
        raise ValueError(f"'path' must be one of {', '.join(PATHS)} (got {path!r})")
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if batch is not None:
            check_batch(batch, q.size(0))
        if mask is not None:
            check_mask(mask, q, path)
            path = choose_path(mask, q.size(-1), v.size(-1), batch) if path == "auto" else path
        scale_q, scale_k = _scales(q, k, batch)
        if mask is not None and path == "pairwise":  # scales each head by itself
            return _pairwise_linear(q, k, v, mask, scale_q, scale_k).to(dtype)
        q, k = q * scale_q, k * scale_k
        if mask is None:
            out = _unmasked_linear(q, k, v, batch)
        elif path == "blocks":
            out = _blocks_linear(q, k, v, mask, batch)
        else:
            out = (_factored_linear if path == "factored" else _dense_linear)(q, k, v, mask)
    return out.to(dtype)


def masked_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, batch: Tensor | None = None, path: str = "auto"
) -> Tensor:
    r"""Attention with the exact softmax kernel :math:`K(q_i, k_j) = \exp(q_i \cdot k_j / \sqrt{R})`.

    Cost: :math:`O(P (R + D))` for a mask with a sparse support, :math:`O(N^2)` otherwise; without a mask, each graph's
    own softmax attention, no array over the whole batch.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. A mask tells graphs apart itself.
        path: ``"pairwise"``, ``"blocks"``, ``"dense"`` or ``"auto"``: blocks where graphs are small beside what the
            mask stores, pairwise where it has a sparse support.

    Returns:
        Shape ``[N, H, D]``. Rows whose denominator vanishes are zero, as in `masked_linear_attention`.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted or the mask cannot serve the path.
    """
    check_qkv(q, k, v)
    if path not in PATHS or path == "factored":
        raise ValueError(f"the softmax kernel takes path 'auto', 'pairwise', 'blocks' or 'dense' (got {path!r})")
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if batch is not None:
            check_batch(batch, q.size(0))
        if mask is None:
            return segment_softmax_attention(q, k, v, batch).to(dtype)
        check_mask(mask, q)
        if path == "auto" and prefers_blocks(mask, q.size(0), batch):
            path = "blocks"
        if path == "blocks":
            return _blocks_softmax(q, k, v, mask, batch).to(dtype)
        if path == "auto":
            path = "dense" if getattr(mask, "num_pairs", None) is None else "pairwise"
            if path == "dense" and not is_dense(mask):
                warnings.warn("softmax attention forms this mask as a dense array", PerformanceWarning, stacklevel=3)
        out = (_pairwise_softmax if path == "pairwise" else _dense_softmax)(q, k, v, mask)
    return out.to(dtype)


def masked_linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, batch: Tensor | None = None
) -> Tensor:
    """`masked_linear_attention` from its definition, with a dense mask ``[N, N]`` or ``[H, N, N]``, for tests."""
    weight = torch.einsum("ihr,jhr->hij", q, k)
    if batch is not None:
        weight = weight * (batch[:, None] == batch)
    weight = weight if mask is None else weight * mask
    den = weight.sum(-1, keepdim=True)
    vanished = den.abs() <= torch.finfo(q.dtype).eps * weight.abs().sum(-1, keepdim=True)
    return torch.where(vanished, 0, weight @ v.transpose(0, 1) / den.where(~vanished, 1)).transpose(0, 1)


def choose_path(mask: Any, num_features: int, head_channels: int, batch: Tensor | None = None) -> str:
    """Path of least cost for a mask, ``R`` features and ``D`` channels per head."""
    if is_dense(mask):
        return "dense"
    if prefers_blocks(mask, mask.num_nodes if hasattr(mask, "num_nodes") else 0, batch):
        return "blocks"
    num_pairs, work = getattr(mask, "num_pairs", None), getattr(mask, "num_multiply_adds", None)
    if num_pairs is None or work is None or num_pairs > MOST_PAIRS * work:
        return "factored"
    scoring = num_pairs * (num_features + head_channels + _PAIR_OVERHEAD)
    return "pairwise" if scoring <= _FACTORED_COST * work * num_features * (head_channels + 1) else "factored"


def _scales(q: Tensor, k: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Factors, ``[N, H, 1]``, of queries by row and of keys by graph, so that no product of features leaves the range.

    They are powers of two and cancel in attention, so no digit of the result changes.
    """
    with torch.no_grad():
        row, top = (_size(x) for x in (q, k))
        if batch is not None:
            top = segment_max(top, batch).index_select(0, batch)
        elif top.size(0):
            top = top.amax(0, keepdim=True).expand_as(top)
        return power_of_two(row), power_of_two(top)


def _size(x: Tensor) -> Tensor:
    """Sum of absolute values over the last dimension, kept: on CPU a fourth of the time of their maximum."""
    return x.abs().sum(-1, keepdim=True)


def _unmasked_linear(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> Tensor:
    sums = segment_linear_attention(q, k, with_ones(v), batch)
    magnitude = sums[..., -1]
    with torch.no_grad():
        if not non_negative(q) or not non_negative(k):  # sum_k |q_k| |z_k|, z the sum of the graph's keys
            ones = v.new_ones(*v.shape[:2], 1)
            keys = segment_linear_attention(ones, ones, k, batch)
            magnitude = (q.abs() * keys.abs()).sum(-1)
    return divide(sums, magnitude)


def _factored_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    num_nodes, heads, num_features = q.shape
    values = with_ones(v)

    def slice_sums(q: Tensor, k: Tensor, values: Tensor) -> Tensor:  # [N, H, D + 2], the last column the magnitude
        outer = k[..., :, None] * values[..., None, :]  # [N, H, r, D + 1]
        outer = outer.flatten(2) if heads_of(mask) is not None else outer.flatten(1)
        state = (mask @ outer).view(num_nodes, heads, k.size(-1), values.size(-1))
        magnitude = (q.detach().abs() * state[..., -1].detach().abs()).sum(-1, keepdim=True)
        return torch.cat([torch.einsum("nhr,nhrd->nhd", q, state), magnitude], dim=-1)

    columns = max(_SLICE_COLUMNS, _SLICE_NUMEL // max(num_nodes, 1))
    step = max(1, columns // (heads * values.size(-1)))
    sums = q.new_zeros(num_nodes, heads, values.size(-1) + 1)
    for a in range(0, num_features, step):
        some = slice(a, a + step)
        sums = sums + checkpoint(
            slice_sums, q[..., some], k[..., some], values, use_reentrant=False, preserve_rng_state=False
        )
    return divide(sums[..., :-1], sums[..., -1])


def _pairwise_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale_q: Tensor, scale_k: Tensor) -> Tensor:
    pattern, entries = supported_pairs(mask, q.dtype)
    # Unbound, not indexed, by head: the gradient of an index is as large as all heads.
    parts = zip(*(pattern.arrange(x).unbind(1) for x in (q, k, with_ones(v), scale_q, scale_k)))
    out = []
    for head, (q_head, k_head, value, scale_q_head, scale_k_head) in enumerate(parts):
        entry = entries if entries.dim() == 1 else entries[:, head]
        # The product with the scale is the contiguous copy of a head that is needed anyway.
        weight = entry * sampled_product(pattern, q_head * scale_q_head, k_head * scale_k_head)
        sums = spmm(pattern, weight, value.contiguous())
        out.append(divide(sums, row_magnitude(pattern, weight, sums)))
    return pattern.restore(torch.stack(out, dim=1))


def _dense_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    entry = dense_entries(mask, q.dtype)
    weight = torch.einsum("ihr,jhr->hij", q, k) * entry
    sums = weight @ with_ones(v).transpose(0, 1)
    return divide(sums, weight.detach().abs().sum(-1)).transpose(0, 1)


def _blocks_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any, batch: Tensor | None) -> Tensor:
    """Weights are transposed and channels come ahead of nodes: on CPU that is twice as fast for narrow heads."""
    positive_features = non_negative(q) and non_negative(k)

    def attend(entry: Tensor, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        q, k, values = (x.mT.contiguous() for x in (q, k, values))  # [g, H, R or D + 1, n]
        score = k.mT @ q
        weight = score * entry if entry.requires_grad else score.mul_(entry)
        known = positive_features and non_negative(entry)
        return with_magnitude(values @ weight, None if known else weight)

    return attend_in_blocks(attend, mask, batch, q, k, with_ones(v))


def _blocks_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Any, batch: Tensor | None) -> Tensor:
    def attend(entry: Tensor, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        q, k, values = (x.mT.contiguous() for x in (q, k, values))
        return softmax_in_block(k.mT @ q, entry, values)

    return attend_in_blocks(attend, mask, batch, q * q.size(-1) ** -0.5, k, with_ones(v))


def _pairwise_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    pattern, entries = supported_pairs(mask, q.dtype)
    scale = q.size(-1) ** -0.5
    out = []
    for head, (q_head, k_head, value) in enumerate(zip(*(pattern.arrange(x).unbind(1) for x in (q, k, with_ones(v))))):
        entry = entries if entries.dim() == 1 else entries[:, head]
        score = sampled_product(pattern, q_head.contiguous() * scale, k_head.contiguous())
        out.append(softmax_on_pairs(pattern, score, entry, value.contiguous()))
    return pattern.restore(torch.stack(out, dim=1))


def _dense_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    entry = dense_entries(mask, q.dtype)
    score = torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5
    top = score.detach().masked_fill(entry == 0, -torch.inf).amax(-1, keepdim=True) if q.size(0) else score.detach()
    weight = entry * exp_below(score, top)
    sums = weight @ with_ones(v).transpose(0, 1)
    return divide(sums, weight.detach().abs().sum(-1)).transpose(0, 1)
