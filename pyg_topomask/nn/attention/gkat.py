"""Graph kernel attention transformer."""

from __future__ import annotations

from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.mask.rwgnk import RWGNKMask


class GKATAttention(MaskedAttention):
    """Attention under the random walks graph-nodes kernel.

    With ``kernel="softmax_rf"`` this is the GKAT of the paper, linear in the stored walks; with ``kernel="softmax"``
    its exact form GKAT-0, which the former tends to as ``num_features`` grows.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.

    The graph must carry walks: :class:`~pyg_topomask.transforms.AddRandomWalks` with the same ``max_length`` and
    ``name``. The paper's walks have a fixed length: ``halt_prob=0``.

    Args:
        channels: Width ``C`` of input and output.
        heads: Heads ``H``; they share one mask unless ``learnable``.
        num_features: Random features per head of ``"softmax_rf"``. The paper takes 256 on citation graphs and 8 to 16
            on small ones.
        kernel: Kernel, as in :class:`MaskedAttention`.
        max_length: Longest walk in hops. 4 by default: on citation graphs the paper finds nothing gained beyond.
        decay, alpha: As in :class:`~pyg_topomask.nn.RWGNKMask`.
        learnable: Learn ``decay`` and ``alpha``, one of each per head.
        name: Prefix of the walk attributes on the graph.
        path, dropout, bias: As in :class:`MaskedAttention`.
    """

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        num_features: int = 64,
        kernel: str = "softmax_rf",
        max_length: int = 4,
        decay: float = 1.0,
        alpha: float = 1.0,
        learnable: bool = False,
        name: str = "walk",
        path: str = "auto",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        mask = RWGNKMask(heads if learnable else 1, decay, alpha, max_length, learnable, name)
        super().__init__(channels, heads, kernel, mask, path, num_features, dropout, bias)
