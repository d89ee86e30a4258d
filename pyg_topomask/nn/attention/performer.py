"""Random-feature attention."""

import torch

from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card, keys_of


class PerformerAttention(MaskedAttention):
    """Linear attention with positive orthogonal random features of the softmax kernel (FAVOR+).

    Reference: Choromanski et al., *Rethinking Attention with Performers*, ICLR 2021, arXiv:2009.14794, Sections 2.3
    and 2.4. Each head has ``C / H`` channels; GraphGPS gives every head 64 channels at any width.

    As in GraphGPS, the features stay those of ``seed`` until `redraw` is called.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``.
        num_features: Random features per head; 64 is about ``D log D`` for ``D`` = 21 channels.
        seed: Seed of the random features. Give each layer its own so that their errors are independent.
        dropout: Probability of zeroing an entry of the result before the output projection, in training.
        bias: Whether the projections have a bias.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, a count is below 1, or ``dropout`` is out of range.
    """

    card = Card(
        formula="all nodes, softmax by random features",
        learns="projections",
        cost="N",
        when="for comparison with the papers' tables",
        reach="far",
        examples=({"num_features": 16},),
    )
    config_keys = keys_of("heads", "num_features", "seed", "dropout")

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        *,
        num_features: int = 64,
        seed: int = 0,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, heads, "softmax_rf", None, "auto", num_features, dropout, bias, seed)

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new features, from the CPU ``generator`` or torch's default one if :obj:`None`."""
        self.feature_map.redraw(generator)  # type: ignore[union-attr, operator]
