"""The attention of sequences on which Primphormer is based."""

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_integer
from pyg_topomask.nn.attention.base import check_input, uncompiled
from pyg_topomask.nn.attention.primphormer import PrimalBase
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.primal import unit_features
from pyg_topomask.ops.segment import segment_linear_attention, segments


class PrimalAttention(PrimalBase):
    r"""Primal attention of sequences: projections by samples of the nodes, in their order, and no virtual node.

    For each head, with queries :math:`\phi_q` and keys :math:`\phi_k` of unit length:

    .. math::
        e_i = \big(f(X)^\top W_e\big)^\top \phi_q(x_i), \qquad r_i = \big(f(X)^\top W_r\big)^\top \phi_k(x_i), \qquad
        \mathrm{out}_i = W_c [e_i ; r_i]

    :math:`f(X)` holds the head's channels of ``num_samples`` nodes at evenly spaced positions in the node order of the
    graph; nodes repeat if there are fewer. The attribute ``auxiliary_loss`` is that of `PrimphormerAttention`, with the
    trace of the parameters :math:`W_e^\top W_r`, as in the authors' code. Add it to the loss in the same way.

    **Not equivariant**: the result depends on the order of the nodes, which is arbitrary in a graph. The class exists
    for comparison with the papers' tables.

    Reference: Chen et al., *Primal-Attention: Self-attention through Asymmetric Kernel SVD in Primal Representation*,
    NeurIPS 2023, arXiv:2305.19798. Table 4 of Primphormer calls it Prim-Atten.
    Cost: :math:`O(N C s)` operations and :math:`O(N H s + N C)` memory.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``D = C / H`` channels.
        num_samples: Nodes sampled from each graph; 200, as in the authors' code, where it is ten times the rank.
        rank: Length ``s`` of the scores; 30, as in Primphormer, which has the same config key; 20 in the authors' code.
        dropout: Probability of zeroing an entry of the scores :math:`[e_i ; r_i]` before :math:`W_c`, in training.
        bias: Whether the projections of queries and keys, and :math:`W_c`, have a bias.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``
        - parameters: :math:`W_e, W_r` are ``weight_e`` and ``weight_r`` ``[H, num_samples, s]``, and the others are
          those of `PrimphormerAttention`

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If a size is below 1, ``heads`` does not divide ``channels``, or ``dropout`` is out of range.
    """

    card = Card(
        formula="a projection that depends on sampled nodes, in their order",
        learns="projections; W_e, W_r, W_c and Λ",
        cost="N",
        when="for comparison with the papers' tables",
        reach="order",
        examples=({"num_samples": 3, "rank": 4},),
    )
    config_keys = keys_of("heads", "num_samples", "rank", "dropout")

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        num_samples: int = 200,
        rank: int = 30,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, heads, rank, dropout, bias)
        num_samples = check_integer("num_samples", num_samples, 1)
        self.num_samples = num_samples
        self.weight_e = Parameter(torch.empty(self.heads, num_samples, self.rank))
        self.weight_r = Parameter(torch.empty(self.heads, num_samples, self.rank))
        self.reset_parameters()

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        projected = self.qk(x)
        with torch.autocast(x.device.type, enabled=False):  # sums of features need float32
            # Linear attention: e_i = sum_j (φ_q(x_i) · x_j) w_j, where w_j sums the rows of W_e whose sample is node j.
            key, weight = at_least_float32(x, torch.cat([self.weight_e, self.weight_r]).transpose(0, 1))
            node = plans.once("primal.samples", lambda: self._sampled(batch, x))
            value = weight.new_zeros(x.size(0), *weight.shape[1:])  # [N, 2 H, s]
            value = value.index_add(0, node.flatten(), weight.repeat(node.size(0), 1, 1))
            key = key.unflatten(1, (self.heads, -1)).repeat(1, 2, 1)
            query = unit_features(self._split(projected)).transpose(0, 1)
            scores = segment_linear_attention(query, key, value, batch).transpose(0, 1).contiguous()
            return self._finish(*self._map_scores(scores), projected.dtype)

    def _sampled(self, batch: Tensor | None, x: Tensor) -> Tensor:
        """``num_samples`` nodes at evenly spaced positions in each graph that has nodes, a row for each graph."""
        first = torch.tensor([0, x.size(0)] if batch is None else segments(batch).ptr, device="cpu")
        first, size = first[:-1], first.diff()
        first, size = first[size > 0, None], size[size > 0, None]
        steps = torch.arange(self.num_samples, device="cpu")
        return (first + steps * (size - 1) // max(self.num_samples - 1, 1)).to(x.device, non_blocking=True)
