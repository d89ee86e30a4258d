"""Predictions for pairs of nodes."""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice
from pyg_topomask.nn.head.mlp import MLPHead
from pyg_topomask.nn.reset import Resettable

DECODINGS = ("dot", "cosine_similarity", "concat")

# Pairs that are scored together in evaluations: their embeddings take 512 bytes for each 64 channels.
_PAIRS_AT_ONCE = 2**20


class EdgeHead(Resettable):
    """Scores of the pairs ``graph.edge_label_index [2, L]``.

    With ``"dot"`` and ``"cosine_similarity"``, an MLP of width ``C`` maps each node, and the score compares the two
    results. With ``"concat"``, the MLP reads both nodes. To score other pairs, as ranking metrics do, call
    ``head.decode(head.embed(x), pairs)``.

    Args:
        channels: Width ``C`` of the nodes.
        out_channels: Number of classes or targets: 1, or more with ``"concat"``.
        layers: Number of linear layers of the MLP.
        dropout: Probability of zeroing a hidden entry, in training.
        act: Activation of the hidden layers, by PyG's names.
        l2_norm: Whether to scale hidden rows to length 1 after the activation.
        decoding: ``"dot"``, ``"cosine_similarity"`` or ``"concat"``.

    Raises:
        ValueError: If ``decoding`` is unknown, or gives one number although more are requested.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int = 1,
        layers: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        l2_norm: bool = True,
        decoding: str = "dot",
    ) -> None:
        super().__init__()
        check_choice("decoding", decoding, DECODINGS)
        if decoding != "concat" and out_channels != 1:
            raise ValueError(f"decoding={decoding!r} gives one score per pair, but {out_channels} are requested")
        self.decoding = decoding
        wide, out = (2 * channels, out_channels) if decoding == "concat" else (channels, channels)
        self.mlp = MLPHead(channels, out, layers, dropout, act, l2_norm, in_channels=wide)

    def embed(self, x: Tensor) -> Tensor:
        """Node embeddings for `decode`, ``[N, C]``."""
        return x if self.decoding == "concat" else self.mlp(x)

    def decode(self, z: Tensor, pairs: Tensor) -> Tensor:
        """Scores ``[L]`` of pairs ``[2, L]`` of rows of ``z``; ``[L, out_channels]`` if there are several."""
        if not torch.is_grad_enabled() and pairs.size(1) > _PAIRS_AT_ONCE:  # OGB has up to 90 million
            return torch.cat([self.decode(z, some) for some in pairs.split(_PAIRS_AT_ONCE, dim=1)])
        first, second = z.index_select(0, pairs[0]), z.index_select(0, pairs[1])
        if self.decoding == "dot":
            return (first * second).sum(dim=1)
        if self.decoding == "cosine_similarity":
            return cosine_similarity(first, second, dim=1)
        out = self.mlp(torch.cat([first, second], dim=1))
        return out.squeeze(1) if out.size(1) == 1 else out

    def forward(self, x: Tensor, graph: Data) -> Tensor:
        """``[N, C] → [L]``, or ``[L, out_channels]``.

        Raises:
            ValueError: If the graph has no ``edge_label_index``.
        """
        pairs = graph.get("edge_label_index")
        if pairs is None:
            raise ValueError(
                "EdgeHead needs 'edge_label_index' on the graph: the pairs to score, [2, L]; "
                "the transform RandomLinkSplit of PyG adds them"
            )
        return self.decode(self.embed(x), pairs)
