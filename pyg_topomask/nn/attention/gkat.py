"""Graph kernel attention transformer."""

import torch
from torch import Tensor
from torch.nn import Linear, Parameter
from torch.nn.functional import elu, leaky_relu
from torch.nn.init import xavier_uniform_, zeros_
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from pyg_topomask.checks import check_choice, check_dropout, check_integer
from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.mask.rwgnk import RWGNKMask
from pyg_topomask.ops.attention.choice import PATHS
from pyg_topomask.ops.attention.inputs import NORMALIZERS
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.masked import additive_scores, masked_additive_attention, problem_of
from pyg_topomask.ops.attention.weights import PairWeights, Rows, pair_weights
from pyg_topomask.ops.numerics import at_least_float32


class GKATAttention(MaskedAttention):
    """Attention under the random walks graph-nodes kernel, the mask :class:`~pyg_topomask.nn.RWGNKMask`.

    With ``kernel="softmax_rf"`` this is the paper's GKAT, whose cost is linear in the stored walks. With
    ``kernel="softmax"`` it is the exact form GKAT-0, the limit of the former as ``num_features`` grows.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.

    The graph must carry walks: add :class:`~pyg_topomask.transforms.AddRandomWalks` with the same ``max_length`` and
    ``name``. The paper's walks have a fixed length: ``halt_prob=0``.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; they share one mask unless ``learnable`` is true.
        num_features: Random features per head for ``"softmax_rf"``. The paper uses 256 on citation graphs and 8 to 16
            on small graphs; the default, 64, lies between them.
        kernel: ``"softmax_rf"``, ``"softmax"``, or one of the simpler kernels of :class:`MaskedAttention`.
        max_length: Longest walk in hops; 4, because the paper finds no gain from longer walks on citation graphs.
        decay: Factor λ ≥ 0 by which each hop multiplies the weight of a visit; 1, as in the paper.
        alpha: Exponent α ≥ 0 of the norms that divide the mask's entries; 1, as in the paper, is the cosine.
        learnable: Whether to learn ``decay`` and ``alpha``, one of each per head.
        name: Prefix of the walk attributes on the graph.
        path: How the product with the mask is computed: ``"auto"`` chooses what is fastest by estimate; see
            :class:`MaskedAttention`.
        dropout: Probability of zeroing an entry of the result before the output projection, in training.
        bias: Whether the projections have a bias.
        seed: Seed of the random features. Give each layer its own so that their errors are independent.
        normalizer: ``"bound"`` or ``"signed"``. The mask has no negative entry, so both give the same result.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``

    Raises:
        TypeError, ValueError: As :class:`MaskedAttention` and :class:`~pyg_topomask.nn.RWGNKMask`.
    """

    card = Card(
        formula="nodes whose random walks meet",
        learns="projections; decay λ and α, if `learnable`",
        cost="N × stored visits",
        when="nodes are similar if walks from them meet",
        reach="hops",
        examples=({"num_features": 16}, {"kernel": "softmax"}, {"learnable": True, "decay": 0.8}),
    )
    config_keys = keys_of(
        *("heads", "num_features", "kernel", "max_length", "decay", "alpha", "learnable", "path", "dropout", "seed"),
        "normalizer",
    )

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
        seed: int = 0,
        normalizer: str = "bound",
    ) -> None:
        mask = RWGNKMask(heads, decay, alpha, max_length, learnable, name)
        super().__init__(channels, heads, kernel, mask, path, num_features, dropout, bias, seed, normalizer)

    def edge_attention(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Attention of each node over its neighbours, which the walks of dynamic GKAT follow.

        Only edges are scored, so the cost is linear in them. :func:`~pyg_topomask.nn.redraw_walks` calls this method.

        Args:
            x: Input of the layer, shape ``[N, C]``.
            edge_index: Edges (node, neighbour) as columns, shape ``[2, E]``.

        Returns:
            Weight of each edge without gradient, shape ``[E]``: the mean over heads of a softmax over the node's edges.
        """
        with torch.no_grad():
            q, k, _ = self._split_heads(self.qkv(x))
            score = (q[edge_index[0]] * k[edge_index[1]]).sum(-1) * q.size(-1) ** -0.5
            return softmax(score, edge_index[0], num_nodes=x.size(0)).mean(1)


class GKATConv(Attention):
    r"""A graph attention layer whose neighbourhoods are the support of the random walks graph-nodes kernel.

    .. math:: x_i' = \mathrm{ELU}\Big(\sum_j \alpha_{ij} W x_j + b\Big), \qquad
        \alpha_{ij} \propto M_{ij} \exp(\mathrm{LeakyReLU}(a_1 \cdot W x_i + a_2 \cdot W x_j))

    This is the layer of graph attention networks (Veličković et al., ICLR 2018, arXiv:1710.10903, Eqs. 3 to 6) with
    the kernel instead of the adjacency, as Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5, use it on
    citation graphs. It is exact on the support of the kernel, and forms no array over all pairs of nodes. Called with
    ``return_attention_weights=True``, it returns :math:`\alpha`, too, as ``GATConv`` does.
    Cost: proportional to the number of node pairs whose walks meet, which grows with the square of a hub's degree.
    More than 2^23 pairs are processed in parts, with a `PerformanceWarning`, so that memory stays below about 2 GiB.

    The graph must carry walks: add :class:`~pyg_topomask.transforms.AddRandomWalks` with ``independent=False``,
    ``halt_prob=0`` and the same ``max_length`` and ``name``, or ``that_add(conv.requires, **conv.transform_settings)``.

    Args:
        in_channels: Width of the input.
        out_channels: Width ``D`` of each head.
        heads: Number of heads ``H``.
        concat: Whether to concatenate the heads. Otherwise the output is their mean.
        negative_slope: Slope of the leaky ReLU; 0.2 as in graph attention networks.
        dropout: Probability of zeroing a normalised weight, in training; 0.6 in the paper.
        elu: Whether to apply the ELU. Turn it off in a last layer that returns logits.
        bias: Whether to add a bias.
        max_length: Longest walk in hops; 4, because the paper finds no gain from longer walks on citation graphs.
        decay: Factor λ ≥ 0 by which each hop multiplies the weight of a visit; 1, as in the paper.
        alpha: Exponent α ≥ 0 of the norms that divide the kernel's entries; 1, as in the paper, is the cosine.
        learnable: Whether to learn ``decay`` and ``alpha``, one of each per head.
        name: Prefix of the walk attributes on the graph.
        path: ``"auto"``, ``"pairwise"``, ``"blocks"`` or ``"dense"``. All compute the same result.
        normalizer: ``"bound"`` or ``"signed"``. The kernel has no negative entry, so both give the same result.

    Shapes:
        - ``x``: ``[N, in_channels]``; output: ``[N, H D]``, or ``[N, D]`` if ``concat`` is false

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If a size, ``dropout``, ``decay`` or ``alpha`` is out of range, or a name is unknown.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        elu: bool = True,
        bias: bool = True,
        max_length: int = 4,
        decay: float = 1.0,
        alpha: float = 1.0,
        learnable: bool = False,
        name: str = "walk",
        path: str = "auto",
        normalizer: str = "bound",
    ) -> None:
        in_channels = check_integer("in_channels", in_channels, 1)
        super().__init__(in_channels, heads, divided=False)
        out_channels = check_integer("out_channels", out_channels, 1)
        check_dropout(dropout)
        check_choice("normalizer", normalizer, NORMALIZERS)
        check_choice("path", path, [name for name in PATHS if name != "factored"])
        self.in_channels, self.out_channels, self.concat = in_channels, out_channels, concat
        self.negative_slope, self.dropout, self.elu = negative_slope, dropout, elu
        self.path, self.normalizer = path, normalizer
        self.mask = RWGNKMask(heads, decay, alpha, max_length, learnable, name)
        self.requires, self.transform_settings = self.mask.requires, self.mask.transform_settings
        self.lin = Linear(in_channels, heads * out_channels, bias=False)
        self.att_receiver = Parameter(torch.empty(heads, out_channels))
        self.att_sender = Parameter(torch.empty(heads, out_channels))
        self.out_width = heads * out_channels if concat else out_channels
        self.bias = Parameter(torch.empty(self.out_width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights again as in graph attention networks, and reset the mask."""
        for weight in (self.lin.weight, self.att_receiver, self.att_sender):
            xavier_uniform_(weight)
        if self.bias is not None:
            zeros_(self.bias)
        self.mask.reset_parameters()

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        """Attend; arguments and errors are those of :meth:`Attention.forward`."""
        batch = check_input(x, self.in_channels, batch, graph)
        v, receiver, sender = self.project(x)
        settings = self.path, self.negative_slope, self.dropout if self.training else 0.0, self.normalizer
        out = masked_additive_attention(receiver, sender, v, self.mask(graph), batch, *settings)
        out = out.flatten(1) if self.concat else out.mean(1)
        out = out if self.bias is None else out + self.bias
        return (elu(out) if self.elu else out).to(x.dtype)

    def _weights(self, x: Tensor, batch: Tensor | None, graph: Data, rows: Rows) -> PairWeights:
        v, *scores = self.project(x)
        kernel = Kernel("additive", negative_slope=self.negative_slope)
        with torch.autocast(x.device.type, enabled=False):
            qkv = *additive_scores(*scores), v
            return pair_weights(problem_of(kernel, qkv, self.mask(graph), batch, self.normalizer), rows)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values ``[N, H, D]``, and the parts of the score from receivers and from senders, ``[N, H]`` each."""
        (v,) = at_least_float32(self.lin(x).view(x.size(0), self.heads, self.out_channels))
        return v, (v * self.att_receiver).sum(-1), (v * self.att_sender).sum(-1)

    def edge_attention(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """As :meth:`GKATAttention.edge_attention`."""
        with torch.no_grad():
            _, receiver, sender = self.project(x)
            score = receiver[edge_index[0]] + sender[edge_index[1]]
            return softmax(leaky_relu(score, self.negative_slope), edge_index[0], num_nodes=x.size(0)).mean(1)
