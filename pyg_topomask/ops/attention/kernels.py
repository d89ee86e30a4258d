"""Kernels of attention, in plain torch: sums on pairs, and sums in dense blocks."""

from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, leaky_relu, pad

from pyg_topomask.ops.functions import Bilinear, recomputed
from pyg_topomask.ops.hashing import keep_factors
from pyg_topomask.ops.numerics import absolute
from pyg_topomask.ops.sparse import Pattern, row_maximum, sampled_product, spmm

KERNELS = ("linear", "softmax", "additive")
"""Names of the kernels, by their numbers in ``native/pairs/packed.h`` and in the Triton module."""


class EdgeVectors(NamedTuple):
    """Vectors that multiply keys: the softmax kernel becomes :math:`\\exp(q_i \\cdot (k_j \\odot e_{ij}))`."""

    vectors: Tensor
    """Shape ``[E, H, R]``."""
    of_pair: Tensor
    """Vector of each pair, int32, shape ``[P]``."""
    common: int
    """The first so many vectors may belong to any number of pairs. Each of the others belongs to one pair."""


class Kernel(NamedTuple):
    """Kernel :math:`K_{ij}` of attention, and its sums.

    Sums have the shape ``[*, D + 1]``: the numerator :math:`\\sum_j M_{ij} K_{ij} v_j` and the size
    :math:`S_i = \\sum_j B_{ij} |K|_{ij}`. If they are ``signed``, they have the shape ``[*, D + 2]``: the denominator
    :math:`\\sum_j M_{ij} K_{ij}` comes before the size, which then has no gradient.
    """

    name: str
    """``"linear"``: :math:`q_i \\cdot k_j`; ``"softmax"``: :math:`\\exp(q_i \\cdot k_j)`; ``"additive"``:
    :math:`\\exp(\\mathrm{LeakyReLU}(q_i \\cdot k_j))`, which is that of a sum for :math:`(q, 1)` and :math:`(1, k)`."""
    signed_features: bool = False
    """Whether the features of the linear kernel may be negative."""
    negative_slope: float = 0.2
    """Slope of the leaky ReLU below zero."""

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
        signed: bool = False,
    ) -> Tensor:
        """Sums over the pairs of a pattern; arrays are in the order of the nodes.

        Args:
            pattern: The ``P`` pairs.
            entries, bounds: Mask and bounding mask, shape ``[P]``, or ``[P, H]``; the same tensor if the mask is its
                own bound.
            q: Queries, shape ``[num_rows, H, R]``.
            k, v: Keys and values, shape ``[num_cols, H, R]`` and ``[num_cols, H, D]``.
            again: Whether to compute the sums of each head again in the backward pass and keep nothing for it.
            kept: Factors of dropout, shape ``[P, H]``; none if :obj:`None`.
            edges: Edge vectors, for the softmax kernel; none if :obj:`None`.
            signed: Whether to add the signed denominator.

        Returns:
            Shape ``[num_rows, H, D + 1]`` or ``[num_rows, H, D + 2]``.
        """
        q, k, v = (pattern.arrange(x) for x in (q, k, v))
        given = entries, None if bounds is entries else bounds, kept, None if edges is None else edges.vectors
        call, of_pair = partial(self._sums, pattern, signed), None if edges is None else edges.of_pair
        if not again and (not q.is_cpu or torch.compiler.is_compiling()):  # one launch for all heads
            return pattern.restore(call(of_pair, q, k, v, *given))
        if again:
            call = partial(recomputed, call)
        # Split, since the gradient of indexing one head would be as large as all heads. CPUs take less time by head.
        optional = (repeat(x) if x is None or x.dim() == 1 else x.split(1, dim=1) for x in given)
        heads = zip(*([y.contiguous() for y in x.split(1, dim=1)] for x in (q, k, v)), *optional)
        return pattern.restore(torch.cat([call(of_pair, *head) for head in heads], 1))

    def _sums(
        self,
        pattern: Pattern,
        signed: bool,
        of_pair: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        entry: Tensor,
        bound: Tensor | None,
        kept: Tensor | None,
        vectors: Tensor | None,
    ) -> Tensor:
        kernel, size = self.on_pairs(pattern, entry if bound is None else bound, q, k, vectors, of_pair)
        ones, weight = v.new_ones(*v.shape[:2], 1), by_head(entry) * kernel
        kept_weight = weight if kept is None else weight * kept
        own = bound is None and size is kernel
        if kept_weight is weight and own and not signed:
            return spmm(pattern, weight, torch.cat([v, ones], 2))
        parts = [spmm(pattern, kept_weight, v)]
        parts += [spmm(pattern, weight, ones)] if signed else []
        total = spmm(pattern, weight if own else by_head(entry if bound is None else bound) * size, ones)
        return torch.cat([*parts, total.detach() if signed else total], 2)

    def on_pairs(
        self,
        pattern: Pattern,
        bound: Tensor,
        q: Tensor,
        k: Tensor,
        vectors: Tensor | None = None,
        of_pair: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The kernel and its size, ``[P, H]``, up to a factor of the row and head, of arrays in the pattern's order."""
        if self.name == "linear":
            kernel = size = sampled_product(pattern, q, k)
            if self.signed_features:
                size = sampled_product(pattern, absolute(q), absolute(k))
            return kernel, size
        if vectors is None or of_pair is None:
            score = sampled_product(pattern, q, k)
        else:
            keys = k.index_select(0, pattern.col) * vectors.index_select(0, of_pair)
            score = (q.index_select(0, pattern.row) * keys).sum(-1)
        score = leaky_relu(score, self.negative_slope) if self.name == "additive" else score
        # The largest score of a row cancels in the quotient; pairs with bound 0 are ignored.
        top = row_maximum(pattern, score.detach().masked_fill(by_head(bound) == 0, -torch.inf))
        kernel = exp_below(score, top.index_select(0, pattern.row))
        return kernel, kernel

    def sums_in_blocks(
        self,
        entry: Tensor,
        bound: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        signed: bool = False,
        drop: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Sums of graphs of similar size over dense blocks of the mask; arrays are zero beyond smaller graphs.

        In the products, channels come before nodes, which is twice as fast on CPU for narrow heads.

        Args:
            entry, bound: Blocks of mask and bounding mask (senders, receivers), shape ``[g or 1, H or 1, n, n]``; the
                same tensor if the mask is its own bound.
            q, k: Queries and keys, shape ``[g, H, n, R]``.
            v: Values, shape ``[g, H, n, D]``.
            signed: Whether to add the signed denominator.
            drop: Probability of zeroing a weight in the numerator.

        Returns:
            Sums ``[g, H, n, D + 1]`` or ``[g, H, n, D + 2]``, and the kernel's size ``[g, H, n, n]`` (senders,
            receivers).
        """
        kernel = self._block_scores(q, k)
        if self.name == "linear":
            size = _Product.of(absolute(k), absolute(q).mT) if self.signed_features else kernel
        else:
            top = kernel.detach().masked_fill(bound == 0, -torch.inf).amax(-2, keepdim=True)
            kernel = size = exp_below(kernel, top)
        weight = entry * kernel
        own = bound is entry and size is kernel
        if own and not signed and not drop:
            return _Product.of(pad(v.mT, (0, 0, 0, 1), value=1.0), weight).mT, size
        parts = [_Product.of(v.mT, dropout(weight, drop) if drop else weight)]
        parts += [weight.sum(-2, keepdim=True)] if signed else []
        total = (weight if own else bound * size).sum(-2, keepdim=True)
        return torch.cat([*parts, total.detach() if signed else total], -2).mT, size

    def _block_scores(self, q: Tensor, k: Tensor) -> Tensor:
        score = _Product.of(k, q.mT.contiguous())
        return leaky_relu(score, self.negative_slope) if self.name == "additive" else score


class _Product(Bilinear):
    """Product of matrices ``[g, H, n, m]`` and ``[g, H, m, k]``.

    Its gradients leave autocast: those of scores nearly cancel, and half precision would keep no digit of them.
    """

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    @staticmethod
    def gradients(grad: Tensor, left: Tensor, right: Tensor, needed: tuple[bool, bool]) -> Any:
        of_left = _Product.of(grad, right.mT) if needed[0] else None
        return of_left, _Product.of(left.mT, grad) if needed[1] else None


def factors_kept(dropout: float, seed: Tensor | None, pattern: Pattern, v: Tensor) -> Tensor | None:
    """Factors of dropout ``[P, H]`` that compiled code draws with a seed; :obj:`None` without one."""
    if seed is None:
        return None
    number = torch.arange(pattern.nnz * v.size(1), device=v.device).view(-1, v.size(1))
    return keep_factors(dropout, seed.to(v.device), number).to(v)


def by_head(entry: Tensor) -> Tensor:
    """Numbers of pairs ``[P]`` or ``[P, H]`` as ``[P, 1 or H]``."""
    return entry if entry.dim() == 2 else entry[:, None]


def exp_below(score: Tensor, top: Tensor) -> Tensor:
    """``exp(score − top)``, where ``top`` is the largest score of the row among pairs with a non-zero bound.

    Pairs with bound 0 may exceed the top. Their exponentials matter only for the gradient of their mask entry, and are
    limited to e^20. Rows without pairs have the top −inf, which counts as 0.
    """
    return (score - top.masked_fill(top == -torch.inf, 0)).clamp(max=20).exp()
