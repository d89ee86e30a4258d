"""Linear attention without a mask for exported programs: plain torch, no size of which depends on a batch's values."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.numerics import least_denominator, with_ones
from pyg_topomask.ops.segment import segment_linear_attention


def linear_of_graphs(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> Tensor:
    """:func:`masked_linear_attention` without a mask, for features without signs; memory :math:`O(N H R D)`."""
    v = with_ones(v)
    if batch is None:
        sums = segment_linear_attention(q, k, v, None)
    else:
        terms = k[..., None] * v[..., None, :]  # [N, H, R, D + 1]
        state = torch.zeros_like(terms).index_add(0, batch, terms)  # at most as many graphs as nodes
        sums = torch.einsum("nhr,nhrd->nhd", q, state.index_select(0, batch))
    total = sums[..., -1:]
    vanished = total < least_denominator(total.dtype)
    return sums[..., :-1].masked_fill(vanished, 0) / total.masked_fill(vanished, 1)
