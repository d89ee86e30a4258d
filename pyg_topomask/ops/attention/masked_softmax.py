"""Softmax attention under a mask with any scores, on the pairs in the support of the mask or in dense blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pyg_topomask.ops.attention.full_softmax import segment_softmax_attention
from pyg_topomask.ops.attention.inputs import check_channels, check_masked_attention
from pyg_topomask.ops.attention.mask import AttentionMask, read_mask
from pyg_topomask.ops.attention.normalizer import (
    Normalizer,
    error_floor,
    normalized_reference,
    sums_in_blocks,
    sums_of_blocks,
)
from pyg_topomask.ops.attention.pair_kernels import PairKernel, exp_below
from pyg_topomask.ops.attention.pairs import means_of_pairs
from pyg_topomask.ops.attention.path_choice import choose_softmax_path
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.typing import PerformanceWarning

PATHS = ("auto", "pairwise", "blocks", "dense")


def masked_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Tensor | None = None,
    batch: Tensor | None = None,
    path: str = "auto",
    normalizer: str = "bound",
) -> Tensor:
    r"""Attention with the exact softmax kernel :math:`K(q_i, k_j) = \exp(q_i \cdot k_j / \sqrt{R})`.

    Cost: :math:`O(P (R + D))` for a mask with a sparse support, :math:`O(N^2)` otherwise. Without a mask, softmax
    attention is computed within each graph, and no array over the pairs of the whole batch is formed.
    Memory: 50 to 200 bytes per pair and 45 bytes per pair and head, for up to 2^23 pairs. Graphs with hubs soon have
    more: a star of 3,000 nodes has 9 million. The pairs are then listed for one part of the rows at a time, and again
    in the backward pass, and a `PerformanceWarning` is given. Memory stays below about 2 GiB plus that of the mask.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator or tensor ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. The mask itself separates graphs.
        path: ``"pairwise"``, ``"blocks"``, ``"dense"`` or ``"auto"``: pairwise if the mask keeps its pairs and compiled
            code serves them; otherwise blocks if they are small compared to the mask's stored numbers, else pairwise if
            the mask has a sparse support, else dense.
        normalizer: ``"bound"`` or ``"signed"``, as in `masked_linear_attention`.

    Returns:
        Shape ``[N, H, D]``. Rows whose denominator vanishes are zero, as in `masked_linear_attention`.

    Raises:
        ValueError, NotImplementedError: As in `masked_linear_attention`; also if queries and keys have no channels
            (``R = 0``).
    """
    check_masked_attention(q, k, v, batch, path, PATHS, normalizer)
    check_channels(q)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if mask is None:
            return segment_softmax_attention(q, k, v, batch).to(dtype)
        masks = Normalizer.of(read_mask(mask, q), normalizer)
        q = q * q.size(-1) ** -0.5
        if path == "auto":
            path = choose_softmax_path(masks.mask, q.size(-1), v.size(-1), batch)
            if path == "dense" and not masks.mask.is_dense:
                warnings.warn("softmax attention forms this mask as a dense array", PerformanceWarning, stacklevel=3)
        if path == "dense":
            return _dense(q, k, v, masks, batch).to(dtype)
        values, origin = masks.from_origin(v, batch)
        if path == "pairwise":
            return means_of_pairs(PairKernel("softmax", masks.signed), masks, q, k, values, batch, origin).to(dtype)
        sums = sums_of_blocks(block_softmax(lambda q, k: k @ q.mT, masks.signed), masks, batch, q, k, values)
        return masks.mean(sums, v, batch, origin).to(dtype)


def masked_softmax_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    bound: Tensor | None = None,
    normalizer: str = "bound",
    tolerance: float = 0.0,
) -> Tensor:
    """`masked_softmax_attention` from its definition, for tests; arguments as in `normalized_reference`."""
    kernel = (torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5).exp()
    return normalized_reference(kernel, kernel, v, mask, bound, normalizer, tolerance)


def block_softmax(
    score: Callable[[Tensor, Tensor], Tensor], signed: bool, dropout: float = 0.0
) -> Callable[..., Tensor]:
    """Sums of softmax attention in one block, for `sums_of_blocks`.

    Args:
        score: Scores ``[g, H, n, n]`` (senders, receivers) of queries and keys ``[g, H, n, R]``.
        signed, dropout: As in `sums_on_pairs`.
    """

    def attend(entry: Tensor, bound: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kernel = _block_kernel(score(q, k), bound)
        total = None if bound is entry else bound * kernel
        return sums_in_blocks(entry * kernel, total, v, signed, dropout)

    return attend


def _block_kernel(score: Tensor, bound: Tensor) -> Tensor:
    """`exp_below` of scores ``[g, H, n, n]`` with the top of each receiver."""
    if score.size(-2) == 0:
        return score
    return exp_below(score, score.detach().masked_fill(bound == 0, -torch.inf).amax(-2, keepdim=True))


def _dense(q: Tensor, k: Tensor, v: Tensor, masks: Normalizer, batch: Tensor | None) -> Tensor:
    if q.size(0) == 0:  # an empty block cannot be padded by PyTorch 2.6
        return v + (q + k).sum()  # 0, with gradients
    entry, bound = masks.dense(v.dtype)
    kernel = _block_kernel(torch.einsum("ihr,jhr->hji", q, k)[None], bound)
    total = None if bound is entry else bound * kernel
    values, origin = masks.from_origin(v, batch)
    sums = sums_in_blocks(entry * kernel, total, values.transpose(0, 1)[None], masks.signed)
    floor = error_floor(masks, lambda: (kernel * (bound != 0)).sum(-2)[0].t()[..., None])
    return masks.mean(sums[0].transpose(0, 1), v, batch, origin, floor)
