"""Additive attention, the scores of graph attention networks, under a topological mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from pyg_topomask.ops.attention.inputs import at_least_float32, check_qkv, with_ones
from pyg_topomask.ops.attention.mask import attend_in_blocks, check_mask, prefers_blocks, supported_pairs
from pyg_topomask.ops.attention.masked_softmax import softmax_in_block, softmax_on_pairs
from pyg_topomask.ops.segment import check_batch

PATHS = ("auto", "pairwise", "blocks")


def masked_additive_attention(
    receiver: Tensor,
    sender: Tensor,
    v: Tensor,
    mask: Any,
    batch: Tensor | None = None,
    path: str = "auto",
    negative_slope: float = 0.2,
    dropout: float = 0.0,
) -> Tensor:
    r"""Each node's weighted mean of values, with the scores of graph attention networks.

    .. math:: \mathrm{out}_i = \frac{\sum_j M_{ij} \exp(e_{ij})\, v_j}{\sum_j M_{ij} \exp(e_{ij})}, \qquad
        e_{ij} = \mathrm{LeakyReLU}(r_i + s_j)

    Reference: Veličković et al., *Graph Attention Networks*, ICLR 2018, arXiv:1710.10903, Eq. 3, with the mask of
    Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5.
    Cost: :math:`O(P D)` per head for ``P`` pairs in the support of the mask; with blocks all pairs within graphs.

    Args:
        receiver, sender: Parts of the score, shape ``[N, H]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]`` with a sparse support or blocks.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        path: ``"pairwise"``, ``"blocks"``, or ``"auto"``, as in `masked_softmax_attention`.
        negative_slope: Slope of the leaky ReLU below zero.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[N, H, D]``; rows whose denominator vanishes are zero.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted or the mask cannot serve the path.
    """
    if path not in PATHS:
        raise ValueError(f"'path' must be one of {', '.join(PATHS)} (got {path!r})")
    if receiver.dim() != 2 or v.dim() != 3:
        raise ValueError(
            f"'receiver' must be [N, H] and 'v' [N, H, D] (got {list(receiver.shape)} and {list(v.shape)})"
        )
    check_qkv(receiver[..., None], sender[..., None], v)
    with torch.autocast(v.device.type, enabled=False):
        receiver, sender, values = at_least_float32(receiver, sender, with_ones(v))
        check_mask(mask, values)
        if batch is not None:
            check_batch(batch, v.size(0))
        if path == "blocks" or (path == "auto" and prefers_blocks(mask, v.size(0), batch)):
            out = _blocks(receiver, sender, values, mask, batch, negative_slope, dropout)
        else:
            out = _pairwise(receiver, sender, values, mask, negative_slope, dropout)
    return out.to(v.dtype)


def masked_additive_attention_reference(
    receiver: Tensor, sender: Tensor, v: Tensor, mask: Tensor, negative_slope: float = 0.2
) -> Tensor:
    """`masked_additive_attention` from its definition, with a dense mask ``[N, N]`` or ``[H, N, N]``, for tests."""
    score = leaky_relu(receiver.t()[:, :, None] + sender.t()[:, None, :], negative_slope)  # [H, N, N]
    weight = mask * score.exp()
    den = weight.sum(-1, keepdim=True)
    return torch.where(den == 0, 0, weight @ v.transpose(0, 1) / den.where(den != 0, 1)).transpose(0, 1)


def _blocks(
    receiver: Tensor, sender: Tensor, values: Tensor, mask: Any, batch: Tensor | None, slope: float, dropout: float
) -> Tensor:
    def attend(entry: Tensor, r: Tensor, s: Tensor, v: Tensor) -> Tensor:
        return softmax_in_block(leaky_relu(s + r.mT, slope), entry, v.mT.contiguous(), dropout)

    return attend_in_blocks(attend, mask, batch, receiver[..., None], sender[..., None], values)


def _pairwise(receiver: Tensor, sender: Tensor, values: Tensor, mask: Any, slope: float, dropout: float) -> Tensor:
    pattern, entries = supported_pairs(mask, values.dtype)
    receiver, sender, values = (pattern.arrange(x) for x in (receiver, sender, values))
    out = []
    for head in range(values.size(1)):
        entry = entries if entries.dim() == 1 else entries[:, head]
        ends = (receiver[:, head].index_select(0, pattern.row), sender[:, head].index_select(0, pattern.col))
        score = leaky_relu(ends[0] + ends[1], slope)
        out.append(softmax_on_pairs(pattern, score, entry, values[:, head].contiguous(), dropout))
    return pattern.restore(torch.stack(out, dim=1))
