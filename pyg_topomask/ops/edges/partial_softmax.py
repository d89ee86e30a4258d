"""Softmax attention over a part of each receiver's pairs; several parts can be joined to one softmax."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as zero_some

from pyg_topomask.ops.sparse import Pattern, row_maximum, spmm


class PartialSoftmax(NamedTuple):
    """Numerators and denominators of a softmax over some pairs, divided by the exponential of each row's top score."""

    sums: Tensor
    """Weighted sums of values, shape ``[N, *, D]``."""
    total: Tensor
    """Sums of weights, shape ``[N, *, 1]``; 0 for a receiver without pairs."""
    top: Tensor
    """Largest score, shape ``[N, *, 1]``, without a gradient; −inf for a receiver without pairs."""


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
