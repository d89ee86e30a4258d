"""Feature maps: non-negative features of queries and keys, whose inner product is the attention kernel."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import elu, pad

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.segment import segment_max


class FeatureMap(Module):
    """Maps queries and keys ``[N, H, D]`` to features ``[N, H, R]``.

    Call it as ``feature_map(q, k, batch)``. ``batch`` is the graph of each node, sorted, or :obj:`None` for one graph.
    A map may scale queries by a factor per row, and keys by a factor per graph and head: both cancel in attention.
    """

    def forward(self, q: Tensor, k: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features of queries and keys, both ``[N, H, R]``."""
        raise NotImplementedError


class EntrywiseFeatures(FeatureMap):
    """Applies a function to each entry of queries and keys."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.function(q), self.function(k)

    def extra_repr(self) -> str:
        return self.function.__name__


class ExpFeatures(FeatureMap):
    """``exp(x)``, entry by entry, divided by the largest entry of the query's row or of the graph's keys.

    Entries below the square root of the smallest number are 0.
    """

    def forward(self, q: Tensor, k: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return _exp_or_zero(q - _row_max(q)), _exp_or_zero(k - _graph_max(k, batch))


class SoftmaxFeatures(FeatureMap):
    r"""Positive orthogonal random features (FAVOR+), unbiased for the softmax kernel :math:`\exp(q \cdot k/\sqrt{D})`.

    .. math:: \phi(x)_r = R^{-1/2} \exp(\omega_r \cdot x' - \|x'\|^2 / 2), \qquad x' = x / D^{1/4}

    with Gaussian :math:`\omega` that are orthogonal within blocks of ``D``. The largest exponent is subtracted from the
    others, per row and head for queries and per graph and head for keys. This factor cancels in attention.

    Reference: Choromanski et al., *Rethinking Attention with Performers*, ICLR 2021, arXiv:2009.14794, Lemma 1 and
    Section 2.4.

    Args:
        head_channels: Width ``D`` of a head.
        num_features: Number ``R`` of random features.
        seed: Seed of the projection.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If ``num_features`` is not positive.
    """

    projection: Tensor

    def __init__(self, head_channels: int, num_features: int = 64, seed: int = 0) -> None:
        super().__init__()
        num_features = check_integer("num_features", num_features, 1)
        self.num_features, self.seed = num_features, check_integer("seed", seed)
        self.register_buffer("projection", torch.empty(num_features, head_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to the projection of the seed."""
        self.redraw(torch.Generator().manual_seed(self.seed))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw a new projection ``[R, D]`` from the CPU ``generator``, or from torch's default one if :obj:`None`."""
        num_features, channels = self.projection.shape
        blocks = -(-num_features // channels)
        gaussian = torch.randn(blocks, channels, channels, generator=generator, device="cpu")
        orthogonal, triangle = torch.linalg.qr(gaussian)
        orthogonal = orthogonal * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # uniform over rotations
        norms = torch.randn(num_features, channels, generator=generator, device="cpu").norm(dim=1, keepdim=True)
        projection = orthogonal.transpose(1, 2).reshape(-1, channels)[:num_features] * norms
        self.projection = projection.to(self.projection)  # another tensor: a backward pass may still need the old one

    def forward(self, q: Tensor, k: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # In place, since features are the largest arrays of a layer and each of these steps would copy them. The norms
        # of queries cancel. Those of keys are part of the product, so that their gradients need no such array.
        shrink, projection = q.size(-1) ** -0.25, self.projection.to(q.dtype)
        extended = pad(projection * shrink, (0, 1), value=-(shrink**2) / 2)
        k = torch.cat([k, k.square().sum(-1, keepdim=True)], dim=-1) @ extended.t()
        q = (q * shrink) @ projection.t()
        scale = math.log(self.num_features) / 2
        top_q, top_k = _row_max(q) + scale, _graph_max(k, batch) + scale
        return _exp_or_zero(q.sub_(top_q)), _exp_or_zero(k.sub_(top_k))


def _exp_or_zero(x: Tensor) -> Tensor:
    """``exp(x)`` in place, and 0 below a limit, so that sums of products are 0 or far from the smallest number.

    A query whose products all vanish then gets the output 0. Otherwise its denominator could be so small that the
    gradient, which is divided by it, would overflow. The factor 2^20 leaves room for sums over nodes.
    """
    with torch.no_grad():
        torch.threshold_(x, math.log(torch.finfo(x.dtype).tiny * 2**20) / 2, -math.inf)
    return x.exp_()


def _elu1(x: Tensor) -> Tensor:
    return elu(x) + 1


def _row_max(x: Tensor) -> Tensor:  # [N, H, R] -> [N, H, 1]
    return x.detach().amax(-1, keepdim=True)


def _graph_max(x: Tensor, batch: Tensor | None) -> Tensor:  # [N, H, R] -> [N or 1, H, 1]
    top = _row_max(x)
    if batch is None:
        return top.amax(0, keepdim=True) if x.size(0) else top
    return segment_max(top, batch).index_select(0, batch)


FEATURE_MAP: dict[str, Callable[..., FeatureMap]] = {
    "relu": partial(EntrywiseFeatures, torch.relu),
    "elu1": partial(EntrywiseFeatures, _elu1),
    "square": partial(EntrywiseFeatures, torch.square),
    "exp": ExpFeatures,
    "softmax_rf": SoftmaxFeatures,
}
"""Feature maps by the name of their kernel. With ``"relu"``, a query without a positive entry attends to nothing and
gets the output zero. ``"elu1"`` is ``elu(x) + 1``, which is always positive (Katharopoulos et al., *Transformers are
RNNs*, ICML 2020, Eq. 7)."""
