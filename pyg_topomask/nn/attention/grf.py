"""Linear attention masked by graph random features."""

from collections.abc import Sequence

from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card, keys_of
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
        max_length: Length of the longest walk in edges, that of ``AddRandomWalks``; the mask reaches twice as far.
        kernel: Map of queries and keys, a name of :class:`MaskedAttention`; ``"relu"`` as in the paper.
        symmetric: Whether two factors of walks make the mask; otherwise one does, which sums over visited nodes.
        independent, diagonal: How queries and keys share walks, as in :class:`GRFMask`; by default, each has its own.
        name: Prefix of the walk attributes on the graph, that of ``AddRandomWalks``.
        path: Engine; ``"auto"`` takes the fastest by estimate, and all give the same result.
        num_features: Random features per head for the kernel ``"softmax_rf"``.
        dropout: Probability of zeroing an entry before the output projection, in training.
        bias: Whether the projections have a bias.
        normalizer: ``"bound"`` divides by sums that cannot vanish, ``"signed"`` by those of the paper.
        table: Number of the walks, or one for each head, if ``AddRandomWalks`` has drawn several (``num_tables``).
        initial: Initial weights of walks by length: ``"exp"`` sees near nodes, ``"geometric"`` and ``"far"`` farther.
        positive: Whether to keep the mask's entries from turning negative.
        stitch: Number of estimates whose product is the mask, which multiplies its reach; 3 for ``"far"``, else 1.
        key_modulation: Whether keys learn a modulation function of their own.

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
