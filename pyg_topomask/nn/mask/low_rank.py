"""Masks of relative positions in sequences, with a low rank."""

from functools import partial
from math import inf, pi

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import NonFiniteError, check_choice, check_integer, holds, readable
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.feature_map import SoftmaxFeatures
from pyg_topomask.nn.graph_attributes import stated_num_nodes
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators.low_rank import LowRankOperator, PositiveLowRankOperator
from pyg_topomask.ops.hashing import GOLDEN, mix
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import at_least_float32

ENCODINGS = ("sinusoidal", "stochastic", "convolutional")

_SHORTEST_PERIOD = 4.0  # of the initial waves, in units of the positions


class LowRankMask(Mask):
    r"""Relative encoding of positions by waves, :math:`M_{ij} \approx e^{N_{ij}}`, as a product of two thin matrices.

    .. math:: N_{ij} = \sum_k \lambda_k^2 \cos(2 \pi f_k (p_i - p_j) + \theta_k)

    The amplitudes :math:`\lambda`, frequencies :math:`f` and phases :math:`\theta` are learned per head. With the
    encoding ``"convolutional"``, filters :math:`a` and :math:`b` are learned instead, and
    :math:`N_{ij} = \sum_t a_t\, b_{t + p_j - p_i}`, which is 0 for positions further apart than the filters are long.

    The logits have the factors :math:`N = N_1 N_2^\top`, and the mask has the factors :math:`\phi(N_1)` and
    :math:`\phi(N_2)`, positive random features of the softmax kernel. So all entries are positive. Sequences of all
    lengths share one module, and positions may have any spacing.

    Reference: Liutkus et al., *Relative Positional Encoding for Transformers with Linear Complexity*, ICML 2021,
    arXiv:2105.08399, Section 2.1 (sineSPE, convSPE); Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.4. Cost
    of a product: ``O(N num_features)``.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        encoding: ``"sinusoidal"``: :math:`N` has the factors above, ``2 num_waves`` wide. ``"stochastic"``: these
            factors are multiplied by one Gaussian matrix, so that they are ``num_waves`` wide and :math:`N` is right in
            expectation. ``"convolutional"``: the factors are one noise of ``2 num_waves`` channels, filtered by
            :math:`a` and by :math:`b`, so that :math:`N` is right in expectation. Positions must be integers.
        num_waves: Number of waves, or length of the filters. 8 by default; initial periods of waves are evenly spaced
            in logarithm from 4 to ``max_period``.
        num_features: Random features, the rank of the mask. More are closer to :math:`e^N`. The standard deviation
            of entries is at most half of them at the start with the default, 64; larger logits need more.
        max_period: Longest initial period, in units of the positions. Distances beyond are hardly told apart at first.
        seed: Seed of the random features, of the Gaussian matrix and of the noise, whose signs are hashes of the seed
            and the position.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a setting is out of range or unknown.
    """

    card = Card(
        formula="≈ exp(Σ λₖ² cos(2πfₖ(pᵢ − pⱼ) + θₖ)) of positions p",
        learns="amplitude, frequency and phase of each wave, or filters",
        cost="2 N `num_features`",
        when="sequences with positions of any spacing",
        reach="far",
        graphs="sequences",
        examples=(
            {"max_period": 16.0, "num_features": 256},
            {"encoding": "stochastic", "num_waves": 2, "num_features": 6},
            {"encoding": "convolutional", "num_waves": 3, "num_features": 6},
        ),
    )
    config_keys = keys_of("heads")
    requires = ("position",)
    mixing: Tensor | None

    def __init__(
        self,
        heads: int = 1,
        encoding: str = "sinusoidal",
        num_waves: int = 8,
        num_features: int = 64,
        max_period: float = 128.0,
        seed: int = 0,
    ) -> None:
        super().__init__(heads)
        check_choice("encoding", encoding, ENCODINGS)
        self.num_waves = check_integer("num_waves", num_waves, 1)
        if not 0 < max_period < inf:
            raise ValueError(f"'max_period' must be positive and finite (got {max_period})")
        self.encoding = encoding
        self.width = self.num_waves if encoding == "stochastic" else 2 * self.num_waves
        self.seed = check_integer("seed", seed)
        self.features = SoftmaxFeatures(self.width, num_features, seed)
        shape = (2 * self.num_waves, self.width)
        self.register_buffer("mixing", torch.empty(shape) if encoding == "stochastic" else None)
        shares = torch.linspace(0, 1, self.num_waves, dtype=torch.float64, device="cpu")
        size = torch.full_like(shares, (2 * self.num_waves) ** -0.5)
        if encoding == "convolutional":
            self.left, self.right = self.learned(size), self.learned(size)
        else:
            period = _SHORTEST_PERIOD * (max_period / _SHORTEST_PERIOD) ** shares
            starts = size, 1 / period, torch.zeros_like(size)
            self.amplitude, self.frequency, self.phase = map(self.learned, starts)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the waves to their initial values: equal amplitudes, no phase, and logits of 1/2 at the distance 0.

        Filters are constant at first, with the same logit at the distance 0. Random projections are those of the seed.
        """
        super().reset_parameters()
        if self.mixing is not None:
            generator = torch.Generator().manual_seed(self.seed + 1)
            mixing = torch.randn(self.mixing.shape, generator=generator, device="cpu") * self.width**-0.5
            self.mixing.copy_(mixing)

    def forward(self, graph: Data) -> LowRankOperator:
        """The mask of a graph or batch with positions.

        Raises:
            ValueError: If the positions are missing, are not one number per node, or hold NaN or infinity, or if
                those of the convolutional encoding are no integers.
        """
        (position,) = self.read(graph)
        convolutional = self.encoding == "convolutional"
        _check_position(position, stated_num_nodes(graph), convolutional)
        if convolutional:
            factors = torch.stack([self._filtered(position, taps) for taps in (self.left, self.right)])
        else:
            factors = self._waves(position)
        left, right = self._features(factors)
        return PositiveLowRankOperator(left, right, graph.get("batch"))

    def _filtered(self, position: Tensor, taps: Tensor) -> Tensor:
        """Noise that is filtered by the taps, at the positions: ``[N, 2 K]`` or ``[H, N, 2 K]``."""
        (taps,) = at_least_float32(taps)
        before = position.view(-1, 1, 1).long() - torch.arange(self.num_waves, device=position.device)[:, None]
        number = before * self.width + torch.arange(self.width, device=position.device)  # [N, K, 2 K]
        signs = 1 - 2 * (mix(number * GOLDEN + self.seed) & 1)
        return torch.einsum("...k,nkr->...nr", taps, signs.to(taps.dtype)) * self.width**-0.5

    def _waves(self, position: Tensor) -> Tensor:
        """The waves of both factors at the positions, ``[2, N, K or 2 K]`` or ``[2, H, N, K or 2 K]``."""
        amplitude, frequency, phase = at_least_float32(self.amplitude, self.frequency, self.phase)
        phases = torch.stack([phase, torch.zeros_like(phase)])[..., None, :]
        cycles = position.double().view(-1, 1) * frequency[..., None, :]
        angle = torch.add(phases, cycles.remainder(1).to(frequency.dtype), alpha=2 * pi)  # whole cycles cost digits
        waves = (torch.stack([angle.cos(), angle.sin()], dim=-2) * amplitude[..., None, None, :]).flatten(-2)
        return waves if self.mixing is None else waves @ self.mixing.to(waves.dtype)

    def _features(self, waves: Tensor) -> Tensor:
        """Random features, ``[*, R]``, whose products are the exponentials of those of the waves."""
        projection = self.features.projection.to(waves.dtype)
        # No exponent exceeds half the squared norm of a row of the projection, so that none needs to be lowered.
        exponent = torch.sub(waves @ projection.t(), waves.square().sum(-1, keepdim=True), alpha=0.5)
        return exponent.exp() * projection.size(0) ** -0.5


@partial(once_per_batch, traced=True)
def _check_position(position: Tensor, num_nodes: int | None, integers: bool) -> None:
    """Refuse positions that are not one finite number (integer) per node, ``[N]`` or ``[N, 1]``. Raises ValueError."""
    if plans.reading():
        return
    expected = position.shape[:1].numel() if num_nodes is None else num_nodes
    if position.numel() != expected:
        raise ValueError(
            f"'position' must hold one position per node, [{expected}] (got {list(position.shape)}); does it come from "
            "another graph?"
        )
    if readable(position) and not bool(position.isfinite().all()):
        raise NonFiniteError("'position' holds NaN or infinity; LowRankMask needs finite positions")
    message = "'position' must hold integers for encoding='convolutional'; round it, or use encoding='sinusoidal'"
    if integers and not holds((position == position.round()).all(), message):
        raise ValueError(message)
