"""Kernels of attention on the pairs in the support of a mask, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.attention.normalizer import sums_on_pairs
from pyg_topomask.ops.numerics import absolute, power_of_two, size_of_rows
from pyg_topomask.ops.sparse import Pattern, row_maximum, sampled_product


class EdgeVectors(NamedTuple):
    """Vectors that multiply keys: the softmax kernel becomes :math:`\\exp(q_i \\cdot (k_j \\odot e_{ij}))`."""

    vectors: Tensor
    """Shape ``[E, H, R]``."""
    of_pair: Tensor
    """Vector of each pair, int32, shape ``[P]``."""
    common: int
    """The first so many vectors may belong to any number of pairs. Each of the others belongs to one pair."""


class PairKernel(NamedTuple):
    """Kernel and normaliser of attention on pairs."""

    name: str
    """``"linear"``: :math:`q_i \\cdot k_j`; ``"softmax"``: :math:`\\exp(q_i \\cdot k_j)`; ``"additive"``:
    :math:`\\exp(\\mathrm{LeakyReLU}(q_i + k_j))`."""
    signed: bool
    """Whether the denominator is the signed sum."""
    signed_features: bool = False
    """Whether the features of the linear kernel may be negative."""
    negative_slope: float = 0.0
    """Slope of the leaky ReLU below zero."""
    dropout: float = 0.0
    """Probability of zeroing a weight in the numerator."""

    def sums(
        self,
        pattern: Pattern,
        entry: Tensor,
        bound: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kept: Tensor | None = None,
        edge: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Sums of one head.

        Args:
            pattern: The support, ``P`` pairs.
            entry, bound: Mask and bounding mask, shape ``[P]``; the same tensor if the mask is its own bound.
            q: Queries, shape ``[num_rows, R]``.
            k, v: Keys and values, shape ``[num_cols, R]`` and ``[num_cols, D]``.
            kept: Factors of dropout, shape ``[P]``; drawn if :obj:`None`.
            edge: Edge vectors ``[E, R]``, and the vector of each pair ``[P]``; none if :obj:`None`.

        Returns:
            Shape ``[num_rows, D + 1]`` or ``[num_rows, D + 2]``, in the form of `weighted_mean`.
        """
        if self.name == "linear":
            kernel = size = sampled_product(pattern, q.contiguous(), k.contiguous())
            if self.signed_features:
                size = sampled_product(pattern, absolute(q), absolute(k))
        else:
            kernel = size = self._exponentials(pattern, bound, self._scores(pattern, q, k, edge))
        total = None if bound is entry and kernel is size else bound * size
        return sums_on_pairs(pattern, entry * kernel, total, v, self.signed, self.dropout if kept is None else kept)

    def sums_of_heads(
        self,
        pattern: Pattern,
        entries: Tensor,
        bounds: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        again: bool = False,
        kept: Tensor | None = None,
        edges: EdgeVectors | None = None,
    ) -> Tensor:
        """Sums of all heads, whose arrays are in the order of the nodes.

        Args:
            pattern: The support.
            entries, bounds: Shape ``[P]``, or ``[P, H]``; the same tensor if the mask is its own bound.
            q: Queries, shape ``[num_rows, H, R]``.
            k, v: Keys and values, shape ``[num_cols, H, R]`` and ``[num_cols, H, D]``.
            again: Whether to compute the sums of each head again in the backward pass and keep nothing for it.
            kept: Factors of dropout, shape ``[P, H]``; drawn if :obj:`None`.
            edges: Edge vectors, for the softmax kernel; none if :obj:`None`.

        Returns:
            Shape ``[num_rows, H, D + 1]`` or ``[num_rows, H, D + 2]``.
        """
        out = []
        # Unbinding is used because the gradient of indexing one head would be as large as all heads.
        for head, arrays in enumerate(zip(*(pattern.arrange(x).unbind(1) for x in (q, k, v)))):
            entry = entries if entries.dim() == 1 else entries[:, head]
            bound = entry if bounds is entries else bounds if bounds.dim() == 1 else bounds[:, head]
            edge = None if edges is None else (edges.vectors[:, head], edges.of_pair)
            call = (pattern, entry, bound, *arrays, None if kept is None else kept[:, head], edge)
            out.append(checkpoint(self.sums, *call, use_reentrant=False) if again else self.sums(*call))
        return pattern.restore(torch.stack(out, dim=1))

    def _scores(self, pattern: Pattern, q: Tensor, k: Tensor, edge: tuple[Tensor, Tensor] | None) -> Tensor:
        if edge is not None:
            vectors, of_pair = edge
            keys = k.index_select(0, pattern.col) * vectors.index_select(0, of_pair)
            return (q.index_select(0, pattern.row) * keys).sum(-1)
        if self.name == "softmax":
            return sampled_product(pattern, q.contiguous(), k.contiguous())
        score = q[:, 0].index_select(0, pattern.row) + k[:, 0].index_select(0, pattern.col)
        return leaky_relu(score, self.negative_slope)

    @staticmethod
    def _exponentials(pattern: Pattern, bound: Tensor, scores: Tensor) -> Tensor:
        # The largest score of a row cancels in the quotient; pairs with bound 0 are ignored.
        top = row_maximum(pattern, scores.detach().masked_fill(bound == 0, -torch.inf))
        return exp_below(scores, top.index_select(0, pattern.row))


def scaled(q: Tensor, k: Tensor, key_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries times the power of two that belongs to their own size, and keys times ``key_scale``, if it is given."""
    return (q, k) if key_scale is None else (q * power_of_two(size_of_rows(q.detach())), k * key_scale)


def exp_below(score: Tensor, top: Tensor) -> Tensor:
    """``exp(score − top)``, where ``top`` is the largest score of the row among pairs with a non-zero bound.

    Pairs with bound 0 may exceed the top. Their exponentials matter only for the gradient of their mask entry, and are
    limited to e^20. Rows without pairs have the top −inf, which counts as 0.
    """
    return (score - top.masked_fill(top == -torch.inf, 0)).clamp(max=20).exp()
