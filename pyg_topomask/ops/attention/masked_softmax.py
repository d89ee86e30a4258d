"""Softmax attention under a mask, whatever the scores: on the pairs in its support, and in dense blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import dropout as zero_some
from pyg_topomask.ops.numerics import divide, non_negative, row_magnitude, with_magnitude
from pyg_topomask.ops.sparse import Pattern, spmm


def softmax_on_pairs(pattern: Pattern, score: Tensor, entry: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """One head's softmax attention on the support of a mask.

    Args:
        pattern: The support, ``P`` pairs.
        score, entry: Score and mask entry of each pair, shape ``[P]``.
        v: Values and a last channel of ones, shape ``[N, D + 1]``, contiguous.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[N, D]``.
    """
    row = pattern.row.long()
    with torch.no_grad():  # the largest score of a row is a factor that cancels; pairs of entry 0 do not count
        top = score.new_full((pattern.num_rows,), -torch.inf)
        top = top.scatter_reduce(0, row, score.masked_fill(entry == 0, -torch.inf), "amax")
    weight = entry * exp_below(score, top.index_select(0, row))
    sums = spmm(pattern, weight, v)
    magnitude = row_magnitude(pattern, weight, sums)
    if dropout:
        kept = spmm(pattern, zero_some(weight, dropout), v[:, :-1].contiguous())
        sums = torch.cat([kept, sums[:, -1:]], dim=-1)
    return divide(sums, magnitude)


def softmax_in_block(score: Tensor, entry: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Sums of softmax attention under a dense mask within graphs of one size, for `divide_sums`.

    Args:
        score: Scores, senders ahead of receivers, shape ``[g, H, n, n]``.
        entry: Entries of the mask, shape ``[g, H or 1, n, n]``.
        v: Values and a last channel of ones, shape ``[g, H, D + 1, n]``.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[g, H, n, D + 2]``.
    """
    top = score.detach().masked_fill(entry == 0, -torch.inf).amax(-2, keepdim=True)
    weight = entry * exp_below(score, top)
    if dropout:
        sums = torch.cat([v[..., :-1, :] @ zero_some(weight, dropout), weight.sum(-2, keepdim=True)], dim=-2)
    else:
        sums = v @ weight
    return with_magnitude(sums, None if non_negative(entry) else weight)


def exp_below(score: Tensor, top: Tensor) -> Tensor:
    """``exp(score − top)``, also where an entry of 0 lets a score exceed the top, for the gradient to that entry.

    It is cut there at e^40, and rows without an entry have no top.
    """
    return (score - top.masked_fill(top == -torch.inf, 0)).clamp(max=40).exp()
