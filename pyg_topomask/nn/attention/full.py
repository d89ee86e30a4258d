"""Exact softmax attention."""

import torch
from torch import Tensor
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from pyg_topomask.checks import check_dropout
from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import read_attributes
from pyg_topomask.ops.attention.full_softmax import segment_softmax_attention
from pyg_topomask.ops.attention.weights import PairWeights, Rows, pair_scores, pairs_of_graphs, pairs_of_rows
from pyg_topomask.ops.numerics import at_least_float32


class FullAttention(Attention):
    r"""Softmax attention of each node to all nodes of its graph, with an optional bias for each pair.

    .. math:: \mathrm{out}_i = W_O \big\Vert_h \sum_j
        \mathrm{softmax}_j\!\left(q_i^h \cdot k_j^h / \sqrt{D} + b_{ij}^h\right) v_j^h

    References: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, arXiv:1706.03762, Eq. 1 and Section 3.2.2;
    for the bias, Ying et al., *Do Transformers Really Perform Badly for Graph Representation?* (Graphormer), NeurIPS
    2021, arXiv:2106.05234, Eqs. 6 and 7. GraphGPS calls the two ``Transformer`` and ``BiasedTransformer``.

    The biases of a batch are one flat array with a row for each ordered pair of nodes in a graph, in the order of
    :func:`~pyg_topomask.ops.all_pairs`: graph after graph, row-major in each. PyG collates an attribute of shape
    ``[n * n, H]`` on each graph in this order. A learnable encoding is computed for the batch:

    .. code-block:: python

        query, key = all_pairs(batch.batch)
        batch.attn_bias = self.distance_embedding(distance(query, key))  # [P, H], differentiable
        x = attn(x, batch.batch, batch)  # attn = FullAttention(C, H, attn_bias="attn_bias")

    Cost: :math:`O(\sum_g n_g^2 C)` operations for graphs of :math:`n_g` nodes. Without biases, no
    array over the pairs of the whole batch is formed; the cost of biases is documented at
    :func:`~pyg_topomask.ops.attention.full_softmax.segment_softmax_attention`. On CPU, torch's fused kernel has no
    second derivative.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``C / H`` channels.
        dropout: Probability of zeroing a normalised attention weight, in training.
        bias: Whether the projections have a bias.
        attn_bias: Name of the graph attribute with the bias of each pair, such as ``"attn_bias"``; no bias if
            :obj:`None`. The attribute is a floating-point tensor of shape ``[P, H]`` or ``[P, 1]`` with
            :math:`P = \sum_g n_g^2`.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; bias: ``[P, H]`` or ``[P, 1]``; output: ``[N, C]``

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, or ``dropout`` is out of range.
    """

    card = Card(
        formula="all nodes of the graph",
        learns="projections",
        cost="N²",
        when="small graphs, and a bias for each pair of nodes",
        reach="far",
        time=2.0,
    )
    config_keys = keys_of("heads", "dropout", attn_bias="posenc_GraphormerBias.enable")
    accepts_tokens = True  # `GraphToken` extends the bias

    def __init__(
        self, channels: int, heads: int = 1, dropout: float = 0.0, bias: bool = True, attn_bias: str | None = None
    ) -> None:
        super().__init__(channels, heads)
        check_dropout(dropout)
        self.dropout, self.attn_bias, self.requires = dropout, attn_bias, (attn_bias,) if attn_bias else ()
        self.qkv = Linear(self.channels, 3 * self.channels, bias=bias)
        self.out = Linear(self.channels, self.channels, bias=bias)

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch, attn_bias = check_input(x, self.channels, batch, graph), self._bias(graph)
        q, k, v = self._split_heads(self.qkv(x))
        out = segment_softmax_attention(q, k, v, batch, attn_bias, self.dropout if self.training else 0.0)
        return self.out(out.flatten(1))

    @property
    def moving(self) -> tuple[str, ...]:
        return () if self.attn_bias is None else (self.attn_bias,)

    def _weights(self, x: Tensor, batch: Tensor | None, graph: Data | None, rows: Rows) -> PairWeights:
        (q, k, _), attn_bias = self._split_heads(self.qkv(x)), self._bias(graph)
        with torch.autocast(x.device.type, enabled=False):
            q, k = at_least_float32(q, k)
            pairs = pairs_of_graphs(batch, x)
            bias = q.new_zeros(pairs.size(1), 1) if attn_bias is None else attn_bias.to(q.dtype)
            pairs, bias = pairs_of_rows(pairs, bias, rows)
            return pairs, softmax(pair_scores(pairs, q, k) + bias, pairs[0], num_nodes=len(x))

    def _bias(self, graph: Data | None) -> Tensor | None:
        remedy = "one row for each ordered pair of its nodes, shape [n * n, heads]"
        return read_attributes(self, graph, remedy)[0] if self.requires else None
