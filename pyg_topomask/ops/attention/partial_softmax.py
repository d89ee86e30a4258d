"""Softmax attention over a part of each receiver's pairs, so that parts of different form become one softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import dropout as zero_some
from pyg_topomask.ops.sparse import Pattern, row_maximum, spmm


class PartialSoftmax(NamedTuple):
    """Numerators and denominators of a softmax over some pairs, both divided by the exponential of a row's maximum."""

    sums: Tensor
    """Weighted sums of values, shape ``[N, *, D]``."""
    total: Tensor
    """Sums of weights, shape ``[N, *, 1]``; zero where a receiver has no pair."""
    top: Tensor
    """The largest score, shape ``[N, *, 1]``, without a gradient; −inf where a receiver has no pair."""

    def divide(self, origin: Tensor | None = None) -> Tensor:
        """The softmax over these pairs alone, shape ``[N, *, D]``; zero where a receiver has no pair.

        Args:
            origin: What was taken from the values before they were summed, shape ``[N, *, D]``, without a gradient.
        """
        empty = self.total == 0
        mean = self.sums / self.total.masked_fill(empty, 1)
        return mean if origin is None else mean + torch.where(empty, 0, origin)


def join_softmax(parts: Sequence[PartialSoftmax], origin: Tensor | None = None) -> Tensor:
    """One softmax over the pairs of all parts, shape ``[N, *, D]``; zero where a receiver has no pair in any."""
    top = torch.stack([part.top for part in parts]).amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    scales = [(part.top - top).exp() for part in parts]  # the largest is 1, so the denominator is at least 1
    sums = torch.stack([part.sums * scale for part, scale in zip(parts, scales)]).sum(0)
    total = torch.stack([part.total * scale for part, scale in zip(parts, scales)]).sum(0)
    return PartialSoftmax(sums, total, top).divide(origin)


def softmax_over_entries(pattern: Pattern, score: Tensor, v: Tensor, dropout: float = 0.0) -> PartialSoftmax:
    """One head's softmax over the entries of each row of a pattern.

    Args:
        pattern: Positions of the entries; rows are receivers, columns senders.
        score: Score of each entry, shape ``[nnz]``.
        v: Values of the senders, shape ``[num_cols, D]``.
        dropout: Probability of zeroing a weight; the denominator keeps it.

    Returns:
        Parts of shapes ``[num_rows, D]``, ``[num_rows, 1]`` and ``[num_rows, 1]``.
    """
    top = row_maximum(pattern, score)  # a factor that cancels
    weight = (score - top.index_select(0, pattern.row)).exp()
    total = spmm(pattern, weight, weight.new_ones(pattern.num_cols, 1))
    sums = spmm(pattern, zero_some(weight, dropout) if dropout else weight, v)
    return PartialSoftmax(sums, total, top[:, None])
