"""What a mask module promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.graph_attributes import read_attributes, settings_text
from pyg_topomask.nn.recorded import Recorded
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.operators import MaskOperator


class Mask(Recorded, Resettable):
    """A learnable topological mask: builds a :class:`MaskOperator` from a graph, called as ``mask(graph)``."""

    card: ClassVar[Card]
    """The mask in a few words, for tables. Every mask has its own."""

    config_keys: ClassVar[Mapping[str, str]] = {}
    """Constructor argument → key of a config that sets it, such as ``{"heads": "gt.n_heads"}``. Arguments other than
    ``heads``, ``name`` and ``table`` also have a key in the section ``topomask.mask_<name>``, without a row here."""
    requires: tuple[str, ...] = ()
    """Attributes that the graph must carry."""
    transform_settings: Mapping[str, Any] = {}
    """Settings of the transform that adds them, where they must be those of the mask."""

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Constructor settings for tests; the picture of all masks shows the first ones."""
        return [{}]

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a graph or batch."""
        raise NotImplementedError

    def read(self, graph: Any) -> list[Tensor]:
        """The attributes of `requires`, in order.

        Raises:
            TypeError: If ``graph`` is not a homogeneous graph.
            ValueError: If one is missing; the message names the transform to add.
        """
        return read_attributes(self, graph)

    def extra_repr(self) -> str:
        return settings_text(self)


def head_parameter(heads: int, *shape: int) -> Parameter:
    """An empty parameter of that shape, preceded by ``heads`` unless that is 1 and all heads share it."""
    return Parameter(torch.empty(shape if heads == 1 else (heads, *shape)))


def initial_modulation(name: str, initial: str | Sequence[float], max_length: int) -> Tensor:
    r"""Initial modulation function ``f``, ``[K + 1]``, float64: ``"exp"``, :math:`2^{-\ell} / \ell!`; ``"geometric"``,
    :math:`2^{-\ell}`; ``"far"``, :math:`1 / (K + 1)`; or at most ``K + 1`` given numbers, followed by zeros. Messages
    call it ``name``.
    """
    lengths = torch.arange(max_length + 1, dtype=torch.float64, device="cpu")
    if isinstance(initial, str):
        check_choice(name, initial, ("exp", "geometric", "far"))
        if initial == "far":
            return torch.full_like(lengths, 1 / (max_length + 1))
        factorial = torch.lgamma(lengths + 1) if initial == "exp" else 0.0
        return (-lengths * log(2) - factorial).exp()
    given = torch.as_tensor(initial, dtype=torch.float64, device="cpu")
    if given.dim() != 1 or not 0 < given.numel() <= max_length + 1 or not bool(given.isfinite().all()):
        raise ValueError(f"'{name}' must hold 1 to 'max_length' + 1 = {max_length + 1} finite numbers (got {initial})")
    return torch.cat([given, given.new_zeros(max_length + 1 - given.numel())])
