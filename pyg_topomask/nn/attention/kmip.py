"""Attention to the k keys with the largest inner products."""

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_dropout, check_integer
from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.ops.attention.weights import PairWeights, Rows, sorted_pairs
from pyg_topomask.ops.topk.attention import topk_attention
from pyg_topomask.ops.topk.backends import BACKENDS
from pyg_topomask.ops.topk.search import topk_inner_product

HEAD_AGG = ("linear", "none")


class KMIPAttention(Attention):
    r"""Softmax attention of each node to the k nodes of its graph with the largest inner products.

    .. math:: \mathrm{out}_i = W_O \big\Vert_h \sum_{j \in T_i^h}
        \mathrm{softmax}_j\!\left(q_i^h \cdot k_j^h / \sqrt{d_k}\right) v_j^h

    Reference: De Schouwer et al. 2026, *k-Maximum Inner Product Attention for Graph Transformers and the Expressive
    Power of GraphGPS*, arXiv:2604.03815; equations 1 and 2 of its poster, *On k-Maximum-Inner-Product Attention and the
    Expressive Power of GraphGPS*. The search is exact. A node of a graph with fewer than ``k`` nodes attends to all of
    them.
    Cost: :math:`O(N H (k + d))` memory for heads of width ``d``. The time of the search is quadratic in the worst case;
    see :func:`~pyg_topomask.ops.topk_inner_product`.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``.
        k: Number of keys that each query attends to; 10, as in the authors' efficiency figure.
        kq_dim: Width of one head's queries and keys. ``C / H`` if :obj:`None`, so that the layer is as large as softmax
            attention. The authors tune it to 5 or 10.
        val_dim: Width of one head's values. ``C / H`` if :obj:`None`.
        dropout: Probability of zeroing a normalised attention weight, in training.
        head_agg: ``"linear"`` mixes the heads by an output projection. ``"none"`` only concatenates them, and requires
            ``val_dim * heads == channels``.
        bias: Whether the projections have a bias.
        backend: Search engine, as in :func:`~pyg_topomask.ops.topk_inner_product`. ``"auto"`` takes the fastest.
        checkpoint: Whether to store only the chosen keys for the backward pass and compute scores and weights again
            there. The search is not repeated.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If a size is below 1, heads and widths do not fit together, ``dropout`` is out of range, or a name
            is unknown.
    """

    card = Card(
        formula="the k nodes whose keys have the largest inner products with its query",
        learns="projections",
        cost="N² at worst, less on clusters; linear memory",
        when="features should decide which nodes attend to each other, at any distance",
        reach="far",
        time=1.6,
        examples=({"k": 3}, {"k": 2, "kq_dim": 3, "val_dim": 5}, {"head_agg": "none", "checkpoint": True}),
    )
    config_keys = keys_of(
        "heads", "dropout", **{name: f"gt.sparse.{name}" for name in ("k", "kq_dim", "val_dim", "head_agg")}
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        k: int = 10,
        kq_dim: int | None = None,
        val_dim: int | None = None,
        dropout: float = 0.0,
        head_agg: str = "linear",
        bias: bool = True,
        backend: str = "auto",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, heads, divided=kq_dim is None or val_dim is None)
        channels, heads = self.channels, self.heads
        k = check_integer("k", k, 1)
        kq_dim = channels // heads if kq_dim is None else check_integer("kq_dim", kq_dim, 1)
        val_dim = channels // heads if val_dim is None else check_integer("val_dim", val_dim, 1)
        check_dropout(dropout)
        check_choice("head_agg", head_agg, HEAD_AGG)
        check_choice("backend", backend, BACKENDS)
        if head_agg == "none" and val_dim * heads != channels:
            raise ValueError(
                f"without an output projection 'val_dim' times 'heads' must be 'channels' (got {val_dim}, {heads} and "
                f"{channels}); set head_agg='linear'"
            )
        self.k, self.kq_dim, self.val_dim = k, kq_dim, val_dim
        self.dropout, self.backend, self.checkpoint = dropout, backend, checkpoint
        self.qkv = Linear(channels, heads * (2 * kq_dim + val_dim), bias=bias)
        self.out = Linear(heads * val_dim, channels, bias=bias) if head_agg == "linear" else None

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        dropout = self.dropout if self.training else 0.0
        q, k, v = self._queries_keys_values(x)
        out = topk_attention(q, k, v, self.k, batch, self.backend, dropout, self.checkpoint).flatten(1)
        return out if self.out is None else self.out(out)

    def _weights(self, x: Tensor, batch: Tensor | None, graph: Data | None, rows: Rows) -> PairWeights:
        q, k, _ = self._queries_keys_values(x)
        scores, index = topk_inner_product(q, k, min(self.k, max(len(x), 1)), batch, backend=self.backend)
        weights, (row, head, place) = (scores * self.kq_dim**-0.5).softmax(-1), (index >= 0).nonzero().t()
        by_head = weights[row, head, place][:, None] * one_hot(head, self.heads)  # heads keep different keys
        return sorted_pairs(torch.stack([row, index[row, head, place]]), by_head, len(x))

    def _queries_keys_values(self, x: Tensor) -> list[Tensor]:
        widths = [self.heads * self.kq_dim] * 2 + [self.heads * self.val_dim]
        return [part.unflatten(1, (self.heads, -1)) for part in self.qkv(x).split(widths, dim=1)]
