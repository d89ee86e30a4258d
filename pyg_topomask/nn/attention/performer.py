"""Random-feature attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.attention.base import uncompiled
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.config_keys import keys_of
from pyg_topomask.nn.feature_map import SoftmaxFeatures
from pyg_topomask.ops.hashing import GOLDEN, mix, wrap


class PerformerAttention(MaskedAttention):
    """Linear attention with positive orthogonal random features of the softmax kernel (FAVOR+), redrawn in training.

    Reference: Choromanski et al., *Rethinking Attention with Performers*, ICLR 2021, arXiv:2009.14794, Sections 2.3
    and 2.4. Each head has ``C / H`` channels; GraphGPS gives every head 64 channels at any width, and never redraws.

    Projections are a function of ``seed`` and the number of training forwards, which is part of the state dict. So all
    processes of a distributed run use the same projections, and a resumed run continues with them. Forwards that
    gradient checkpointing repeats are not counted; with checkpointing, call ``backward`` before the next forward.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``.
        redraw_interval: Training forwards between two draws of the projection; 1000, as in the reference
            implementation. :obj:`None` never redraws.
        num_features, seed, dropout, bias: As in :class:`MaskedAttention`.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, or a count is below 1.
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
        redraw_interval: int | None = 1000,
        seed: int = 0,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, heads, "softmax_rf", num_features=num_features, dropout=dropout, bias=bias)
        if redraw_interval is not None:
            redraw_interval = check_integer("redraw_interval", redraw_interval, 1)
        seed = check_integer("seed", seed)
        self.redraw_interval, self.seed, self.num_forwards = redraw_interval, seed, 0
        self._draw(0)

    def reset_parameters(self) -> None:
        """Initialise the parameters again and return to the first projection."""
        super().reset_parameters()
        self.num_forwards = 0
        self._draw(0)

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw a new projection now, from the CPU ``generator`` or torch's default one if :obj:`None`."""
        self._features.redraw(generator)

    def get_extra_state(self) -> int:
        """The number of training forwards, for the state dict."""
        return self.num_forwards

    def set_extra_state(self, state: Any) -> None:
        """Restore the number of training forwards from a state dict."""
        self.num_forwards = int(state)

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        """Attend as :class:`MaskedAttention`; in training, redraw the projection when it is due."""
        if self.training and self.redraw_interval is not None:
            self._count(self.redraw_interval)
        return super().forward(x, batch, graph)

    def _count(self, interval: int) -> None:
        if torch._C._current_graph_task_id() != -1:  # in a backward pass, checkpointing repeats an earlier forward
            return
        if self.num_forwards > 0 and self.num_forwards % interval == 0:
            self._draw(self.num_forwards // interval)
        self.num_forwards += 1

    def _draw(self, number: int) -> None:
        seed = int(mix(torch.tensor(wrap(self.seed * GOLDEN + number), device="cpu")))
        self._features.redraw(torch.Generator().manual_seed(seed))

    @property
    def _features(self) -> SoftmaxFeatures:
        assert isinstance(self.feature_map, SoftmaxFeatures)
        return self.feature_map
