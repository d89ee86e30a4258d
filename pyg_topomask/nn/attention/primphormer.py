"""Attention in its primal representation."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.init import orthogonal_, uniform_
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_dropout, check_dtype, check_integer, is_exporting
from pyg_topomask.nn.attention.base import Attention, check_carry, check_input
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.dropout import has_hooks
from pyg_topomask.ops.dropout import dropout
from pyg_topomask.ops.numerics import at_least_float32, with_ones
from pyg_topomask.ops.primal import joined_scores, map_scores, primal_map, primal_scores, sums_of_squares
from pyg_topomask.ops.segment import segment_mean, segments


class PrimalBase(Attention):
    """Queries and keys of unit length, the objective ``J``, and the map from scores to the output.

    A subclass has parameters ``weight_e`` and ``weight_r`` of equal shape, and computes the scores.
    """

    adds_loss: ClassVar[bool] = True
    weight_e: Parameter
    weight_r: Parameter

    def __init__(self, channels: int, heads: int, rank: int, dropout: float, bias: bool) -> None:
        super().__init__(channels, heads)
        self.rank = check_integer("rank", rank, 1)
        check_dropout(dropout)
        self.dropout = dropout
        self.qk = Linear(self.channels, 2 * self.channels, bias=bias)
        self.sqrt_lambda = Parameter(torch.empty(self.heads, self.rank))
        self.out = Linear(2 * self.rank, self.channels // self.heads, bias=bias)

    def reset_parameters(self) -> None:
        """Initialise all parameters again: orthogonal W_e and W_r, the square roots of Λ uniform in [0, 1)."""
        super().reset_parameters()
        uniform_(self.sqrt_lambda)
        for matrix in (self.weight_e, self.weight_r):
            orthogonal_(matrix)

    def _split(self, projected: Tensor) -> Tensor:
        """Queries of all heads, then keys, ``[N, 2 H, D]``."""
        qk, real = at_least_float32(projected)[0].unflatten(1, (2 * self.heads, -1)), plans.real_rows(projected.size(0))
        return qk if real is None else torch.where(real[:, None, None], qk, 0)  # which have scores of 0

    @property
    def _out_is_called(self) -> bool:
        """Whether ``out`` was replaced or has hooks: then it must be called, and its weight not be read."""
        return type(self.out) is not Linear or has_hooks(self.out)

    def _out_weight(self) -> Tensor:
        """The maps of the scores of queries and of keys to the output, ``[2, s, D]``."""
        (weight,) = at_least_float32(self.out.weight)
        return weight.view(-1, 2, self.rank).permute(1, 2, 0)

    def _map_scores(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The output of each head, ``[N, H, D]``, and the sums of squares of scores ``[2 H, N, s]``."""
        if not self._out_is_called:
            return map_scores(scores, self._out_weight(), lambda z: dropout(z, self.dropout, self.training))
        both = joined_scores(dropout(scores, self.dropout, self.training))
        (out,) = at_least_float32(self.out(both.to(_dtype_of(self.out, both))))
        return out, sums_of_squares(scores)

    def _finish(self, out: Tensor, squares: Tensor, dtype: torch.dtype) -> Tensor:
        """Set ``auxiliary_loss`` by the scores' sums of squares ``[2 H, s]``, and return the output, ``[N, C]``."""
        sqrt_lambda, weight_e, weight_r = at_least_float32(self.sqrt_lambda, self.weight_e, self.weight_r)
        real = plans.real_rows(out.size(0))
        count: Any = max(out.size(0), 1) if real is None else real.sum().clamp(min=1)
        squares = squares.view(2, self.heads, self.rank).sum(dim=0) / count
        energy = (squares * sqrt_lambda.square()).sum() / 2
        if not is_exporting():  # programs change no attributes
            self.auxiliary_loss = ((energy - (weight_e * weight_r).sum()) / self.heads).square()
        unchanged = 0 * sqrt_lambda.sum()  # the output depends on all parameters, as DDP wants
        bias = None if self._out_is_called else self.out.bias
        out = out + (unchanged if bias is None else bias + unchanged)
        return out.reshape(-1, self.channels).to(dtype)


class PrimphormerAttention(PrimalBase):
    r"""Linear-time attention by graph-dependent projections, with the auxiliary loss of the primal objective.

    For each head, with queries :math:`\phi_q` and keys :math:`\phi_k` of unit length:

    .. math::
        e_i = f_X W_e \phi_q(x_i), \qquad r_i = f_X W_r \phi_k(x_i), \qquad
        \mathrm{out}_i = W_c [e_i ; r_i], \qquad
        f_X = F + \Big(\sum_{l} B_l\, \mathrm{mean}_{j} x_j^{(l)}\Big) \mathbf{1}^\top \in \mathbb{R}^{s \times N_s}

    The sum runs over the layers up to this one, each of which adds the update of its virtual node. All columns of this
    second term are equal. So the carry from layer to layer is one vector ``u`` of length ``s`` per graph, and
    :math:`f_X W = F W + u (\mathbf{1}^\top W)` is never formed per graph. All layers share :math:`F` (`tie`, which
    :class:`~pyg_topomask.nn.GPSStack` calls). Every layer has its own :math:`B, W_e, W_r, W_c` and :math:`\Lambda`.

    After each call, the attribute ``auxiliary_loss`` is :math:`J^2` with

    .. math:: J = \tfrac12 \mathrm{mean}_i\, e_i^\top \Lambda e_i + \tfrac12 \mathrm{mean}_i\, r_i^\top \Lambda r_i
        - \mathrm{Tr}(W_e^\top W_r),

    averaged over heads before it is squared. Add it to the loss with the paper's weight η (0.1 or 0.01):
    ``loss + eta * auxiliary_loss(model)``. Without it, the gradient of :math:`\Lambda` is zero. The means run over all
    nodes of the batch, as in the paper's pseudo-code, so every node has the same weight and the objective estimates
    that of the whole data set. The loss therefore depends on how graphs are batched, as with batch norm; the output
    does not.

    Gradient checkpointing needs ``use_reentrant=False``, because reentrant checkpointing computes the loss without a
    gradient, which :func:`~pyg_topomask.nn.auxiliary_loss` refuses.

    Reference: *Primphormer: Efficient Graph Transformers with Primal Representations*, ICML 2025. Equations 2.5 and
    2.8, Theorem 2 and Algorithm 1 are those of its submission, *Primphormer: Leveraging Primal Representation for Graph
    Transformers*, whose regulariser is parametrised by the square root of :math:`\Lambda`.
    Cost: :math:`O(N C s + N_s C s)` operations and :math:`O(N H s + N C)` memory; compiled code on CPU needs
    :math:`O(N C + N s)`, because it keeps no scores.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``D = C / H`` channels.
        num_virtual: Number :math:`N_s` of columns of :math:`f_X`; 30, as in half of the authors' experiments.
        rank: Length ``s`` of the scores; 30, because the authors always use :math:`s = N_s`.
        dropout: Probability of zeroing an entry of the scores :math:`[e_i ; r_i]` before :math:`W_c`, in training.
            It does not affect the objective.
        bias: Whether the projections of queries, keys and the virtual node, and :math:`W_c`, have a bias.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted, ``carry``: ``[B, s]``; output: ``[N, C]``
        - parameters: :math:`F` is ``projection [s, N_s]``, :math:`B` is ``virtual``, :math:`W_e, W_r` are ``weight_e``
          and ``weight_r`` ``[N_s, C]`` (heads side by side), :math:`\Lambda^{1/2}` is ``sqrt_lambda [H, s]``,
          :math:`W_c` is ``out``, and ``qk`` projects to queries and keys

    Numerics: scores of half-precision inputs are computed in float32. A query or key shorter than 1e-12 has no
    direction, so its features and their gradient are zero.

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If a size is below 1, ``heads`` does not divide ``channels``, or ``dropout`` is out of range.
    """

    card = Card(
        formula="a projection that depends on the graph",
        learns="projections; F, W_e, W_r, W_c and Λ",
        cost="N",
        when="the cheapest exchange between all nodes",
        reach="far",
        examples=({"num_virtual": 5, "rank": 3},),
    )
    config_keys = keys_of("heads", "num_virtual", "rank", "dropout")

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        num_virtual: int = 30,
        rank: int = 30,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, heads, rank, dropout, bias)
        num_virtual = check_integer("num_virtual", num_virtual, 1)
        self.num_virtual = num_virtual
        self.projection = Parameter(torch.empty(rank, num_virtual))
        self.virtual = Linear(channels, rank, bias=bias)
        self.weight_e = Parameter(torch.empty(num_virtual, channels))
        self.weight_r = Parameter(torch.empty(num_virtual, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters again: orthogonal F, W_e and W_r, the square roots of Λ uniform in [0, 1)."""
        super().reset_parameters()
        orthogonal_(self.projection)

    def tie(self, first: Module) -> None:
        """Share the matrix F of ``first``, the attention of an earlier layer. `GPSStack` calls this."""
        self.projection = first.projection  # type: ignore[assignment]

    def initial_carry(self, num_graphs: int) -> Tensor:
        """The carry of the first layer: zeros ``[B, s]``, so that f_X starts as F."""
        (projection,) = at_least_float32(self.projection)
        return projection.new_zeros(num_graphs, self.rank)

    def forward(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, carry: Tensor | None = None
    ) -> Any:
        """Attend, ``[N, C] → [N, C]``, as in :meth:`Attention.forward`.

        Given a ``carry [B, s]`` from `initial_carry` or the previous layer, return ``(x, carry)``.
        """
        batch = check_input(x, self.channels, batch, graph)
        check_dtype(self, x)
        if carry is None:
            state = self.initial_carry(1 if batch is None else segments(batch).num_graphs)
        else:
            check_carry(carry, batch, self.rank)
            state = carry
        projected = self.qk(x)
        with torch.autocast(x.device.type, enabled=False):  # sums of features need float32
            qk = self._split(projected)
            mean = segment_mean(at_least_float32(x)[0], batch, state.size(0))
            state = state + self.virtual(mean.to(_dtype_of(self.virtual, mean)))
            *weights, projection = at_least_float32(self.weight_e, self.weight_r, self.projection)
            weight = torch.cat([w.unflatten(1, (self.heads, -1)).permute(1, 2, 0) for w in weights])  # [2 H, D, N_s]
            update = state.expand(x.size(0), -1) if batch is None else state.index_select(0, batch)  # [N, s]
            weight, update = weight @ with_ones(projection.t()), update.to(qk.dtype)  # of F W φ and 1ᵀ W φ
            if self._out_is_called:
                mapped = self._map_scores(primal_scores(qk, update, weight))
            else:
                mapped = primal_map(qk, update, weight, self._out_weight(), self.dropout, self.training)
            out = self._finish(*mapped, projected.dtype)
        return out if carry is None else (out, state)


def _dtype_of(module: Module, x: Tensor) -> torch.dtype:
    """The dtype of a module's parameters; that of ``x`` if it has none."""
    return next((parameter.dtype for parameter in module.parameters()), x.dtype)
