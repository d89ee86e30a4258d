"""Attention to neighbours and, with separate queries, keys and weight, to all other nodes of the graph."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric.data import Data

from pyg_topomask.checks import check_dropout
from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import check_rows, read_edge_attr, read_edges
from pyg_topomask.ops.attention.weights import PairWeights, Rows
from pyg_topomask.ops.edges.san import san_attention, san_weights
from pyg_topomask.ops.numerics import at_least_float32


class SANAttention(Attention):
    r"""Softmax attention over all pairs of a graph, with different scores for edges and non-edges.

    .. math:: \mathrm{out}_i = W_O \Big\Vert_h \frac{\sum_j w_{ij}^h v_j^h}{\sum_j w_{ij}^h}, \qquad
        w_{ij} = \begin{cases}
        \frac{1}{1 + \gamma} \exp\bigl(q_i \cdot (k_j \odot e_{ji}) / \sqrt{D}\bigr) & \text{for an edge } j \to i \\
        \frac{\gamma}{1 + \gamma} \exp\bigl(q'_i \cdot (k'_j \odot e') / \sqrt{D}\bigr)
        & \text{for a non-edge, } j \ne i \end{cases}

    Edges and non-edges share the values, but have separate queries and keys (:math:`q, k` and :math:`q', k'`). The
    edge vector :math:`e_{ji}` is a linear map of ``edge_attr``. For non-edges, :math:`e'` is a linear map of a learned
    vector that all layers of a stack share. Without ``edge_dim``, both are learned vectors of the layer that start as
    ones. A duplicate edge counts twice. A node attends to itself only along a self loop, and a node that attends to
    nothing gets the output of zero values.

    Reference: Kreuzer et al., *Rethinking Graph Transformers with Spectral Attention*, NeurIPS 2021, arXiv:2106.03893.
    As in the authors' code (``SANLayer`` in GraphGPS), edges and non-edges share one denominator, so that only the
    ratio :math:`\gamma` of the two factors matters. Unlike that code, this is an exact softmax: the code clips
    scores to [−5, 5], which stops their gradient, and adds 1e-6 to the denominator, which shrinks the output of nodes
    without edges if :math:`\gamma` is as small. The paper's layer, with its norms and feed-forward part, is a
    :class:`~pyg_topomask.nn.GPSLayer` without convolution.
    Cost: :math:`O((E + \sum_g n_g^2) C)` operations and :math:`O(E C + H \sum_g n_g^2)` memory for graphs of
    :math:`n_g` nodes, in dense blocks of similar size. Without ``full_graph``, both are :math:`O(E C)`.

    The graph must have ``edge_index`` or ``adj_t``, and ``edge_attr`` if ``edge_dim`` is given.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``C / H`` channels.
        edge_dim: Width of ``graph.edge_attr`` (``[E, edge_dim]``, or ``[E]`` for 1). It may be the output of an
            encoder that runs before the model; gradients reach it.
        gamma: Weight :math:`\gamma > 0` of non-edges relative to edges; 1e-5 as in GraphGPS, whose configs use 1e-6 to
            1e-1.
        full_graph: Whether to attend to non-edges.
        dropout: Probability of zeroing a normalised attention weight, in training; 0, as in the authors' code.
        bias: Whether the projections of nodes and edges have a bias; none, as in the authors' code. The output
            projection always has one.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; ``edge_attr``: ``[E, edge_dim]``; output: ``[N, C]``

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, or a number is out of range.
    """

    card = Card(
        formula="all nodes, edges and non-edges apart",
        learns="projections of edges and of non-edges",
        cost="N² + E",
        when="small graphs whose edges have features",
        reach="far",
        time=2.0,
        memory=2.0,
        examples=({}, {"gamma": 0.1}, {"full_graph": False}),
    )
    config_keys = keys_of(
        "heads", "dropout", edge_dim="dataset.edge_encoder", gamma="gt.gamma", full_graph="gt.full_graph"
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        edge_dim: int | None = None,
        gamma: float = 1e-5,
        full_graph: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__(channels, heads)
        channels = self.channels
        if not (gamma > 0 and isfinite(gamma)):
            raise ValueError(f"'gamma' must be a positive number (got {gamma}); full_graph=False leaves out non-edges")
        check_dropout(dropout)
        self.edge_dim, self.gamma, self.full_graph, self.dropout = edge_dim, gamma, full_graph, dropout
        self.qkv = Linear(channels, 3 * channels, bias=bias)
        self.out = Linear(channels, channels)
        self.edge = Linear(edge_dim, channels, bias=bias) if edge_dim is not None else None
        self.edge_vector = Parameter(torch.empty(channels)) if edge_dim is None else None
        self.absent_qk = Linear(channels, 2 * channels, bias=bias) if full_graph else None
        self.absent = Linear(edge_dim, channels, bias=bias) if full_graph and edge_dim is not None else None
        self.absent_vector = Parameter(torch.empty(edge_dim or channels)) if full_graph else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the projections and learned vectors again."""
        super().reset_parameters()
        with torch.no_grad():
            if self.edge_vector is not None:
                self.edge_vector.fill_(1)
            if self.absent_vector is not None:
                self.absent_vector.fill_(1) if self.absent is None else self.absent_vector.normal_()

    def tie(self, first: Module) -> None:
        """Share the vector that replaces the features of non-edges with ``first``, the attention of an earlier layer.

        :class:`~pyg_topomask.nn.GPSStack` calls this. Without ``edge_dim``, each layer keeps its own vector.
        """
        if self.absent is not None:
            self.absent_vector = first.absent_vector  # type: ignore[assignment]

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        (q, k, v, edge), edge_index, non_edges, dtype = self._projected(x, graph)
        with torch.autocast(x.device.type, enabled=False):  # sums over a graph need float32
            dropout = self.dropout if self.training else 0.0
            out = san_attention(q, k, v, edge, edge_index, non_edges, self.gamma, batch, dropout)
        return self.out(out.to(dtype).flatten(1))

    def _weights(self, x: Tensor, batch: Tensor | None, graph: Data | None, rows: Rows) -> PairWeights:
        (q, k, _, edge), edge_index, non_edges, _ = self._projected(x, graph)
        with torch.autocast(x.device.type, enabled=False):
            return san_weights(q, k, edge, edge_index, non_edges, self.gamma, batch)

    def _projected(
        self, x: Tensor, graph: Data | None
    ) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor, Tensor] | None, torch.dtype]:
        """What `san_attention` takes: queries, keys, values and edge vectors; edges; tensors of non-edges; and the
        dtype of the result.
        """
        edge_index = read_edges(self, graph)
        check_rows(graph, x.size(0))
        q, k, v = self._split_heads(self.qkv(x))
        shape, dtype = (-1, *q.shape[1:]), v.dtype
        edge: Any = self.edge_vector  # one for all edges
        if self.edge is not None:
            edge = self.edge(read_edge_attr(graph, self.edge.in_features, edge_index.size(1), x.dtype))
        absent: Sequence[Tensor] = ()
        if self.absent_qk is not None:
            vector: Any = self.absent_vector if self.absent is None else self.absent(self.absent_vector)
            absent = [*self._split_heads(self.absent_qk(x), 2), vector.view(shape)]
        with torch.autocast(x.device.type, enabled=False):
            q, k, v, edge, *absent = at_least_float32(q, k, v, edge.view(shape), *absent)
            non_edges = (absent[0] * absent[2], absent[1]) if absent else None
            return (q, k, v, edge), edge_index, non_edges, dtype
