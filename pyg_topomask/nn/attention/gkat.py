"""Graph kernel attention transformer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import elu, leaky_relu
from torch.nn.init import xavier_uniform_, zeros_
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from pyg_topomask.checks import check_dropout, check_integer
from pyg_topomask.nn.attention.base import check_input
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.mask.rwgnk import RWGNKMask
from pyg_topomask.ops.attention.masked_additive import PATHS as ADDITIVE_PATHS
from pyg_topomask.ops.attention.masked_additive import masked_additive_attention
from pyg_topomask.ops.attention.normalizer import check_normalizer
from pyg_topomask.ops.numerics import at_least_float32


class GKATAttention(MaskedAttention):
    """Attention under the random walks graph-nodes kernel.

    With ``kernel="softmax_rf"`` this is the GKAT of the paper, linear in the stored walks; with ``kernel="softmax"``
    its exact form GKAT-0, which the former tends to as ``num_features`` grows.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.

    The graph must carry walks: :class:`~pyg_topomask.transforms.AddRandomWalks` with the same ``max_length`` and
    ``name``. The paper's walks have a fixed length: ``halt_prob=0``.

    Args:
        channels: Width ``C`` of input and output.
        heads: Heads ``H``; they share one mask unless ``learnable``.
        num_features: Random features per head of ``"softmax_rf"``. The paper takes 256 on citation graphs and 8 to 16
            on small ones.
        kernel: Kernel, as in :class:`MaskedAttention`.
        max_length: Longest walk in hops. 4 by default: on citation graphs the paper finds nothing gained beyond.
        decay, alpha: As in :class:`~pyg_topomask.nn.RWGNKMask`.
        learnable: Learn ``decay`` and ``alpha``, one of each per head.
        name: Prefix of the walk attributes on the graph.
        path, dropout, bias, seed, normalizer: As in :class:`MaskedAttention`.
    """

    config_keys: ClassVar[dict[str, str]] = {
        "heads": "gt.n_heads",
        "num_features": "topomask.num_features",
        "kernel": "topomask.kernel",
        "max_length": "topomask.max_length",
        "decay": "topomask.decay",
        "alpha": "topomask.alpha",
        "learnable": "topomask.learnable",
        "path": "topomask.path",
        "dropout": "gt.attn_dropout",
        "seed": "seed",
        "normalizer": "topomask.normalizer",
    }

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
        mask = RWGNKMask(heads if learnable else 1, decay, alpha, max_length, learnable, name)
        super().__init__(channels, heads, kernel, mask, path, num_features, dropout, bias, seed, normalizer)

    @classmethod
    def requirements(cls, **settings: Any) -> tuple[str, ...]:
        """The walks of :class:`~pyg_topomask.nn.RWGNKMask`."""
        return RWGNKMask.requirements(**settings)

    def edge_attention(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Attention of each node over its neighbours, for dynamic GKAT: walks that follow it.

        Only edges are scored, so the cost is linear in them. Used by :func:`~pyg_topomask.nn.redraw_walks`.

        Args:
            x: Input of the layer, shape ``[N, C]``.
            edge_index: Edges (node, its neighbour) as columns, shape ``[2, E]``.

        Returns:
            Weight of each edge, the mean over heads of the softmax over the node's edges, shape ``[E]``, without
            gradient.
        """
        with torch.no_grad():
            q, k, _ = self.qkv(x).view(x.size(0), 3, self.heads, self.channels // self.heads).unbind(dim=1)
            score = (q[edge_index[0]] * k[edge_index[1]]).sum(-1) * q.size(-1) ** -0.5
            return softmax(score, edge_index[0], num_nodes=x.size(0)).mean(1)


class GKATConv(Module):
    r"""A graph attention layer whose neighbourhoods are those of the random walks graph-nodes kernel.

    .. math:: x_i' = \mathrm{ELU}\Big(\sum_j \alpha_{ij} W x_j + b\Big), \qquad
        \alpha_{ij} \propto M_{ij} \exp(\mathrm{LeakyReLU}(a_1 \cdot W x_i + a_2 \cdot W x_j))

    The layer of graph attention networks (Veličković et al., ICLR 2018, arXiv:1710.10903, Eqs. 3 to 6), the
    adjacency replaced by the kernel: what Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5, run on
    citation graphs. Exact on the support of the kernel, without an array over all pairs of nodes.
    Cost: in proportion to the pairs of nodes whose walks meet, which grow with the square of a hub's degree. More than
    2^23 pairs are taken in parts, with a `PerformanceWarning`, so that memory stays below about 2 GiB.

    The graph must carry walks: :class:`~pyg_topomask.transforms.AddRandomWalks` with ``independent=False``, the same
    ``max_length`` and ``name``.

    Args:
        in_channels: Width of the input.
        out_channels: Width ``D`` of each head.
        heads: Heads ``H``.
        concat: Concatenate the heads, else take their mean.
        negative_slope: Slope of the leaky ReLU; 0.2 as in graph attention networks.
        dropout: Probability of zeroing a normalised weight in training; 0.6 in the paper.
        elu: Apply the ELU. Leave it out of a last layer that returns logits.
        bias: Whether there is a bias.
        max_length, decay, alpha, learnable, name: As in :class:`GKATAttention`.
        path: ``"pairwise"``, ``"blocks"`` or ``"auto"``; all give the same result.
        normalizer: As in :class:`MaskedAttention`. The kernel has no negative entry, so both are the same.

    Shapes:
        - ``x``: ``[N, in_channels]``; output ``[N, H D]``, or ``[N, D]`` where heads are averaged

    Raises:
        TypeError: If a size or count is no integer.
        ValueError: If a width, ``heads`` or ``dropout`` is out of range, or a name is unknown.
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
        super().__init__()
        in_channels = check_integer("in_channels", in_channels, 1)
        out_channels, heads = check_integer("out_channels", out_channels, 1), check_integer("heads", heads, 1)
        check_dropout(dropout)
        check_normalizer(normalizer)
        if path not in ADDITIVE_PATHS:
            raise ValueError(f"'path' must be one of {', '.join(ADDITIVE_PATHS)} (got {path!r})")
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.elu = negative_slope, dropout, elu
        self.path, self.normalizer = path, normalizer
        self.mask = RWGNKMask(heads if learnable else 1, decay, alpha, max_length, learnable, name)
        self.requires = self.mask.requires
        self.lin = Linear(in_channels, heads * out_channels, bias=False)
        self.att_receiver = Parameter(torch.empty(heads, out_channels))
        self.att_sender = Parameter(torch.empty(heads, out_channels))
        width = heads * out_channels if concat else out_channels
        self.bias = Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights afresh as graph attention networks do, and reset the mask."""
        for weight in (self.lin.weight, self.att_receiver, self.att_sender):
            xavier_uniform_(weight)
        if self.bias is not None:
            zeros_(self.bias)
        self.mask.reset_parameters()

    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        """Attend. ``batch=None`` means ``graph.batch`` where there is one, else one graph.

        Raises:
            ValueError: If a shape is wrong, a feature is not finite or the graph lacks walks.
        """
        batch = check_input(x, self.in_channels, batch, graph)
        v, receiver, sender = self.project(x)
        out = masked_additive_attention(
            receiver,
            sender,
            v,
            self.mask(graph),
            batch,
            self.path,
            self.negative_slope,
            self.dropout if self.training else 0.0,
            self.normalizer,
        )
        out = out.flatten(1) if self.concat else out.mean(1)
        out = out if self.bias is None else out + self.bias
        return (elu(out) if self.elu else out).to(x.dtype)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values ``[N, H, D]``, and the receivers' and senders' parts of the score, ``[N, H]``."""
        (v,) = at_least_float32(self.lin(x).view(x.size(0), self.heads, self.out_channels))
        return v, (v * self.att_receiver).sum(-1), (v * self.att_sender).sum(-1)

    def edge_attention(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """As :meth:`GKATAttention.edge_attention`."""
        with torch.no_grad():
            _, receiver, sender = self.project(x)
            score = receiver[edge_index[0]] + sender[edge_index[1]]
            return softmax(leaky_relu(score, self.negative_slope), edge_index[0], num_nodes=x.size(0)).mean(1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, concat={self.concat}"
