"""PyG's Polynormer attention, on ragged batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.attention import PolynormerAttention as DensePolynormerAttention

from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.config_keys import keys_of
from pyg_topomask.ops.numerics import at_least_float32, with_ones
from pyg_topomask.ops.segment import segment_linear_attention


class PolynormerAttention(Attention):
    r"""Polynormer's global attention: sigmoid linear attention within each graph, gated by the node itself.

    .. math:: a_i = \frac{\sum_j (\sigma(q_i) \cdot \sigma(k_j)) v_j}{\sum_j \sigma(q_i) \cdot \sigma(k_j)}, \qquad
        \mathrm{out}_i = \mathrm{relu}\big(W_O [\mathrm{LN}(a_i) \odot (W_H x_i + \beta)]\big)

    over the nodes ``j`` of the graph of ``i``. Parameters and, on a single graph, results are those of
    :class:`torch_geometric.nn.attention.PolynormerAttention`. On padded batches, PyG's class counts padding in the
    denominator; here nothing is padded.

    Reference: Deng et al., *Polynormer: Polynomial-Expressive Graph Transformer in Linear Time*, ICLR 2024,
    arXiv:2403.01232, Section 3.2.
    Cost: :math:`O(N C^2)`.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``C / H`` channels.
        beta: The constant :math:`\beta`; 0.9, as in PyG.
        qk_shared: Whether queries equal keys; true, as in PyG.
        bias: Whether the projections of queries, keys and values have a bias; none, as in PyG.
        dropout: Probability of zeroing an entry of the output, in training.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, or ``dropout`` is out of range.
    """

    card = Card(
        formula="all nodes, gated by the node itself",
        learns="projections",
        cost="N",
        when="large graphs, with the same weights as PyG's class",
        reach="far",
    )
    config_keys = keys_of("heads", "dropout")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        return [{}, {"qk_shared": False}]

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        beta: float = 0.9,
        qk_shared: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(channels, heads)
        width = self.channels // self.heads
        self.dense = DensePolynormerAttention(self.channels, self.heads, width, beta, bias, qk_shared, dropout)

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch, dense = check_input(x, self.channels, batch, graph), self.dense
        gate, k, v = dense.h_lins(x), dense.k(x), dense.v(x)
        q = k if dense.qk_shared else dense.q(x)
        with torch.autocast(x.device.type, enabled=False):  # sums over a graph need float32
            q, k, v = (part.unflatten(1, (-1, self.heads)).transpose(1, 2) for part in at_least_float32(q, k, v))
            sums = segment_linear_attention(q.sigmoid(), k.sigmoid(), with_ones(v), batch)  # [N, H, D + 1]
            out = (sums[..., :-1] / (sums[..., -1:] + 1e-6)).transpose(1, 2).flatten(1)  # PyG's order: heads innermost
        out = dense.lns(out.to(gate.dtype)) * (gate + dense.beta)
        return dense.dropout(dense.lin_out(out).relu())
