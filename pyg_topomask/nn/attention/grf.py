"""Linear attention masked by graph random features."""

from __future__ import annotations

from collections.abc import Sequence

from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.config_keys import keys_of
from pyg_topomask.nn.mask.grf import GRFMask


class GRFAttention(MaskedAttention):
    """Linear attention under a learnable power series of the adjacency that is estimated by random walks.

    The mask is :class:`GRFMask`. The cost is linear in the number of nodes.

    Reference: Reid et al., *Linear Transformer Topological Masking with Graph Random Features*, 2024,
    arXiv:2410.03462, Algorithm 1 (symmetric) and Appendix D (not symmetric).

    The graph must carry walks: add :class:`~pyg_topomask.transforms.AddRandomWalks` with the same ``max_length``,
    ``independent`` or ``diagonal``, and ``name``, and with ``num_tables`` if layers or heads have their own walks.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each learns its own modulation function.
        kernel: As in :class:`MaskedAttention`; ``"relu"`` as in the paper.
        max_length, symmetric, independent, name, diagonal, table: As in :class:`GRFMask`.
        initial, positive, stitch, key_modulation: As in :class:`GRFMask`.
        path, num_features, dropout, bias, normalizer: As in :class:`MaskedAttention`.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``

    Raises:
        TypeError, ValueError: As :class:`MaskedAttention` and :class:`GRFMask`.
    """

    card = Card(
        formula="nodes that random walks reach, by a learned function of the hops",
        learns="projections; f at 0 … `max_length` hops",
        cost="N",
        when="the structure of the graph should matter, on graphs of any size",
        reach="hops",
        examples=({}, {"diagonal": "corrected", "kernel": "softmax"}, {"heads": 2, "table": (1, 0)}),
    )
    config_keys = keys_of(
        *("heads", "max_length", "kernel", "symmetric", "independent", "diagonal", "key_modulation"),
        *("path", "num_features", "dropout", "normalizer"),
        table="topomask.num_tables",
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        max_length: int = 4,
        kernel: str = "relu",
        symmetric: bool = True,
        independent: bool = True,
        name: str = "walk",
        path: str = "auto",
        num_features: int = 64,
        dropout: float = 0.0,
        bias: bool = True,
        normalizer: str = "bound",
        diagonal: str | None = None,
        table: int | Sequence[int] = 0,
        initial: str | Sequence[float] = "exp",
        positive: bool = False,
        stitch: int | None = None,
        key_modulation: bool = False,
    ) -> None:
        walks = max_length, symmetric, independent, name, diagonal, table
        mask = GRFMask(heads, *walks, initial, positive, stitch, key_modulation)
        super().__init__(channels, heads, kernel, mask, path, num_features, dropout, bias, normalizer=normalizer)
