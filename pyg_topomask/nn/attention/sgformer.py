"""PyG's SGFormer attention, on ragged batches."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.attention import SGFormerAttention as DenseSGFormerAttention

from pyg_topomask.nn.attention.base import Attention, check_input
from pyg_topomask.ops.attention.inputs import from_origin
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import segment_linear_attention, segment_sum


class SGFormerAttention(Attention):
    r"""SGFormer's linear attention with a residual of weight ``n``, each graph on its own.

    .. math:: \mathrm{out}_i = \frac{1}{H} \sum_h
        \frac{n v_i + \sum_j (\hat q_i \cdot \hat k_j) v_j}{n + \sum_j \hat q_i \cdot \hat k_j},
        \qquad \hat q_i = q_i / \|q_i\|

    over the ``n`` nodes ``j`` of the graph of ``i``. The parameters are those of
    :class:`torch_geometric.nn.attention.SGFormerAttention`, whose result it equals on one graph without padding. On
    padded batches PyG's own counts padding as nodes, in ``n`` and in the denominator. A zero query or key, which has no
    direction, weighs nothing here; PyG replaces zeros by 1e-6.

    Reference: Wu et al., *SGFormer: Simplifying and Empowering Transformers for Large-Graph Representations*, NeurIPS
    2023, arXiv:2306.10759, Eqs. 2 and 3; queries and keys are normalised node by node, as in PyG.
    Cost: :math:`O(N H C^2)`, because each head is as wide as the input.

    Args:
        channels: Width ``C`` of input and output, and of each head: heads are averaged.
        heads: Heads ``H``; PyG asks that they divide ``channels``.
        bias: Whether queries, keys and values have a bias.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``

    Raises:
        TypeError: If a size or count is no integer.
        ValueError: If ``heads`` does not divide ``channels``.
    """

    config_keys: ClassVar[dict[str, str]] = {"heads": "gt.n_heads"}

    def __init__(self, channels: int, heads: int = 1, bias: bool = False) -> None:
        super().__init__(channels, heads)
        self.dense = DenseSGFormerAttention(self.channels, self.heads, head_channels=self.channels, qkv_bias=bias)

    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        """Attend, ``[N, C] → [N, C]``. ``batch=None`` means ``graph.batch`` where there is one, else one graph.

        Raises:
            ValueError: If a shape is wrong, a feature is not finite, or ``batch`` is not sorted.
        """
        batch = check_input(x, self.channels, batch, graph)
        projected = [linear(x).unflatten(1, (self.heads, -1)) for linear in (self.dense.q, self.dense.k, self.dense.v)]
        with torch.autocast(x.device.type, enabled=False):  # sums over a graph need float32
            q, k, v = at_least_float32(*projected)  # [N, H, C]
            v, origin = from_origin(v, batch)
            per_query, per_key = _inverse_norm(q), _inverse_norm(k)
            size = _graph_size(x, batch)
            values = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1) * per_key  # the last column: denominators
            sums = segment_linear_attention(q, k, values, batch)
            least = torch.finfo(v.dtype).eps * size  # reached only where all keys oppose the query
            share = ((size + per_query * sums[..., -1:]).clamp(min=least) * self.heads).reciprocal()  # [N, H, 1]
            out = _sum_heads(size * share, v) + _sum_heads(per_query * share, sums[..., :-1])
            out = out if origin is None else out + origin.mean(dim=1)
        return out.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.heads}"


def _inverse_norm(x: Tensor) -> Tensor:
    """Factors that give rows unit length: applied to products, which costs less than to the rows."""
    return x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny ** 0.5).reciprocal()


def _sum_heads(weight: Tensor, x: Tensor) -> Tensor:  # [N, H, 1], [N, H, C] -> [N, C]
    return (weight * x).sum(dim=1)


def _graph_size(x: Tensor, batch: Tensor | None) -> Tensor:
    """Number of nodes of each node's graph, shape ``[N, 1, 1]``, or ``[1, 1, 1]`` for one graph."""
    if batch is None:
        return torch.full((1, 1, 1), float(x.size(0)), device=x.device)
    return segment_sum(torch.ones(x.size(0), 1, 1, device=x.device), batch).index_select(0, batch)
