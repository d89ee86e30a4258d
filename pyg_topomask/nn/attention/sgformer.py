"""PyG's SGFormer attention, on ragged batches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.attention import SGFormerAttention as DenseSGFormerAttention

from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.config_keys import keys_of
from pyg_topomask.ops.numerics import at_least_float32, with_ones
from pyg_topomask.ops.segment import segment_linear_attention, segment_sum


class SGFormerAttention(Attention):
    r"""SGFormer's linear attention within each graph, with a residual of weight ``n``.

    .. math:: \mathrm{out}_i = \frac{1}{H} \sum_h
        \frac{n v_i + \sum_j (\hat q_i \cdot \hat k_j) v_j}{n + \sum_j \hat q_i \cdot \hat k_j},
        \qquad \hat q_i = q_i / \|q_i\|

    over the ``n`` nodes ``j`` of the graph of ``i``. Parameters and, on a single graph, results are those of
    :class:`torch_geometric.nn.attention.SGFormerAttention`. On padded batches, PyG's class counts padding as nodes;
    here nothing is padded. A zero query or key has no direction and gets weight zero; PyG replaces zeros by 1e-6.

    Reference: Wu et al., *SGFormer: Simplifying and Empowering Transformers for Large-Graph Representations*, NeurIPS
    2023, arXiv:2306.10759, Eqs. 2 and 3. Queries and keys are normalised node by node, as in PyG.
    Cost: :math:`O(N H C^2)`, because each head is as wide as the input.

    Args:
        channels: Width ``C`` of input, output and every head; heads are averaged.
        heads: Number of heads ``H``, which must divide ``channels``, as in PyG.
        bias: Whether the projections of queries, keys and values have a bias; none, as in PyG.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``.
    """

    card = Card(
        formula="all nodes, one linear layer",
        learns="projections",
        cost="N",
        when="large graphs, with the same weights as PyG's class",
        reach="far",
    )
    config_keys = keys_of("heads")

    def __init__(self, channels: int, heads: int = 1, bias: bool = False) -> None:
        super().__init__(channels, heads)
        self.dense = DenseSGFormerAttention(self.channels, self.heads, head_channels=self.channels, qkv_bias=bias)

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        projected = [linear(x).unflatten(1, (self.heads, -1)) for linear in (self.dense.q, self.dense.k, self.dense.v)]
        with torch.autocast(x.device.type, enabled=False):  # sums over a graph need float32
            q, k, v = at_least_float32(*projected)  # [N, H, C]
            per_query, per_key = _inverse_norm(q), _inverse_norm(k)
            size = _graph_size(x, batch)
            sums = segment_linear_attention(q, k, with_ones(v) * per_key, batch)  # the last column: denominators
            least = torch.finfo(v.dtype).eps * size  # reached only if all keys oppose the query
            share = ((size + per_query * sums[..., -1:]).clamp(min=least) * self.heads).reciprocal()  # [N, H, 1]
            out = _sum_heads(size * share, v) + _sum_heads(per_query * share, sums[..., :-1])
        return out.to(x.dtype)


def _inverse_norm(x: Tensor) -> Tensor:
    """Factors that give rows unit length; applying them to products costs less than to the rows."""
    return x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny ** 0.5).reciprocal()


def _sum_heads(weight: Tensor, x: Tensor) -> Tensor:  # [N, H, 1], [N, H, C] -> [N, C]
    return (weight * x).sum(dim=1)


def _graph_size(x: Tensor, batch: Tensor | None) -> Tensor:
    """Number of nodes of each node's graph, shape ``[N, 1, 1]``, or ``[1, 1, 1]`` for one graph."""
    if batch is None:
        return torch.full((1, 1, 1), float(x.size(0)), device=x.device)
    return segment_sum(torch.ones(x.size(0), 1, 1, device=x.device), batch).index_select(0, batch)
