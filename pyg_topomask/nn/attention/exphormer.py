"""Attention along the edges of the graph, of an expander graph, and to and from virtual nodes."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Parameter
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_dropout, check_integer, holds
from pyg_topomask.nn.attention.base import Attention, check_carry, check_input, uncompiled
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import check_rows, check_table, read_attributes, read_edge_attr, read_edges
from pyg_topomask.ops.attention.mixture import solve
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.attention.weights import PairWeights, Rows, pair_weights
from pyg_topomask.ops.edges.edge_softmax import typed_edge_problem
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import segments


class ExphormerAttention(Attention):
    r"""Sparse softmax attention of each node to its neighbours, its expander neighbours and its graph's virtual nodes.

    .. math:: \mathrm{out}_i = W_O \big\Vert_h \sum_{j \to i}
        \mathrm{softmax}_{j}\!\left(q_i^h \cdot (k_j^h \odot e_{ji}^h) / \sqrt{D}\right) v_j^h

    Each edge type (graph edge, expander edge, edge to and edge from a virtual node) has a learned vector
    :math:`e_{ji}`. With ``edge_dim``, a linear map of ``edge_attr`` is added on graph edges. The vectors start as ones,
    so that the layer starts as plain dot-product attention. A duplicate edge counts twice, and a node without any edge
    gets the output of zero values.

    Virtual nodes attend to all nodes of their graph, and all nodes attend to them. Their output is the carry to the
    next layer. Their input is this carry plus an embedding that each layer learns, so the embedding of the first layer
    is their initial state. The output of the last layer's virtual nodes is not used, so there the row of ``edge_type``
    for edges to virtual nodes has a zero gradient.

    Reference: Shirzad et al., *Exphormer: Sparse Transformers for Graphs*, ICML 2023, arXiv:2303.06147. As in the
    paper, weights are a softmax and :math:`W_O` mixes the heads. The authors' code clips scores to [−5, 5], which
    stops their gradient, adds 1e-6 to the denominator, which shrinks the output of nodes with low scores, and has no
    :math:`W_O`.
    Cost: :math:`O((E + E' + N V) C)` operations and :math:`O(E + E' + N (V + C))` memory for ``E'`` expander edges,
    and :math:`O(E C)` memory with ``edge_dim``.

    The graph must have ``edge_index`` or ``adj_t``, and expander edges: add
    :class:`~pyg_topomask.transforms.AddExpanderEdges` with the same ``num_virtual``.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``C / H`` channels.
        num_virtual: Virtual nodes ``V`` of each graph; the authors' configs use 0 to 6.
        edge_dim: Width of ``graph.edge_attr`` (``[E, edge_dim]``, or ``[E]`` for 1); edge features are not used if
            :obj:`None`. They may come from a learnable encoder, which gets gradients.
        expander: Whether to use expander edges; false is ``prep.exp: False`` in the authors' configs.
        graph_edges: Whether to use the edges of the graph; false is the authors' ablation ``prep.add_edge_index:
            False``, which excludes ``edge_dim``.
        dropout: Probability of zeroing a normalised attention weight, in training.
        bias: Whether the projections have a bias.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``; carry: ``[B, V, C]``

    Raises:
        TypeError: If a size or count is not an integer.
        ValueError: If ``heads`` does not divide ``channels``, a size or ``dropout`` is out of range, or ``edge_dim`` is
            given without ``graph_edges``.
    """

    card = Card(
        formula="neighbours, random expander neighbours and virtual nodes",
        learns="projections; a vector for each type of edge, virtual nodes",
        cost="N + E",
        when="edges with features, and a short way between any two nodes",
        reach="far",
        examples=({}, {"num_virtual": 0}, {"expander": False}, {"graph_edges": False}),
    )
    config_keys = keys_of(
        "heads",
        "dropout",
        num_virtual="prep.num_virt_node",
        edge_dim="dataset.edge_encoder",
        expander="prep.exp",
        graph_edges="prep.add_edge_index",
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        num_virtual: int = 1,
        edge_dim: int | None = None,
        expander: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        graph_edges: bool = True,
    ) -> None:
        super().__init__(channels, heads)
        channels = self.channels
        num_virtual = check_integer("num_virtual", num_virtual, 0)
        if not graph_edges and edge_dim is not None:
            raise ValueError(f"edge_dim={edge_dim} needs graph edges, but 'graph_edges' is false")
        check_dropout(dropout)
        self.num_virtual, self.edge_dim, self.dropout = num_virtual, edge_dim, dropout
        self.expander, self.graph_edges = expander, graph_edges
        self.requires = ("expander_index", "expander_size") if expander else ()
        self.transform_settings = {"num_virtual": num_virtual}
        self.qkv = Linear(channels, 3 * channels, bias=bias)
        self.out = Linear(channels, channels, bias=bias)
        self.edge = Linear(edge_dim, channels, bias=False) if edge_dim is not None else None
        self.edge_type = Parameter(torch.empty(1 + expander + 2 * (num_virtual > 0), channels))
        self.virtual = Parameter(torch.empty(num_virtual, channels)) if num_virtual else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the projections and embeddings again."""
        super().reset_parameters()
        with torch.no_grad():
            self.edge_type.fill_(1)
            if self.virtual is not None:
                self.virtual.normal_()

    def initial_carry(self, num_graphs: int) -> Tensor:
        """The state of the virtual nodes before the first layer: zeros, shape ``[B, V, C]``."""
        return self.edge_type.new_zeros(num_graphs, self.num_virtual, self.channels)

    @uncompiled
    def forward(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, carry: Tensor | None = None
    ) -> Any:
        """Attend, ``[N, C] → [N, C]``, as in :meth:`Attention.forward`.

        Given a ``carry [B, V, C]`` from `initial_carry` or the previous layer, return ``(x, carry)``.

        Raises:
            ValueError: Also if the graph has another number of nodes than ``x`` has rows, or the expander edges belong
                to a graph of another size or were prepared for another ``num_virtual``.
        """
        batch = check_input(x, self.channels, batch, graph)
        problem, num_graphs, dtype = self._problem(x, batch, graph, carry)
        with torch.autocast(x.device.type, enabled=False):  # sums over neighbours need float32
            out = solve(problem, "pairwise")
        out = self.out(out.to(dtype).flatten(1))
        if carry is None:
            return out[: x.size(0)]
        return out[: x.size(0)], out[x.size(0) :].view(num_graphs, self.num_virtual, self.channels)

    def _weights(
        self, x: Tensor, batch: Tensor | None, graph: Data | None, rows: Rows, carry: Tensor | None = None
    ) -> PairWeights:
        problem, _, _ = self._problem(x, batch, graph, carry)
        with torch.autocast(x.device.type, enabled=False):
            return pair_weights(problem)

    def _problem(
        self, x: Tensor, batch: Tensor | None, graph: Data | None, carry: Tensor | None
    ) -> tuple[Problem, int, torch.dtype]:
        """What is to be solved, the number of graphs, and the dtype of the result."""
        if carry is not None:
            num_graphs = check_carry(carry, batch, self.num_virtual, self.channels)
        else:
            num_graphs = 1 if batch is None else plans.num_graphs() or segments(batch).num_graphs
        edge_index, expander_index = self._read_edges(graph, x.size(0))
        where = edge_index, expander_index, batch, x.size(0), num_graphs, self.num_virtual
        nodes = x
        if self.virtual is not None:
            virtual = self.virtual.repeat(num_graphs, 1) if carry is None else (carry + self.virtual).flatten(0, 1)
            nodes = torch.cat([x, virtual.to(x.dtype)])
        q, k, v = self._split_heads(self.qkv(nodes))
        dtype = v.dtype
        edge = None
        if self.edge is not None:
            edge = self.edge(read_edge_attr(graph, self.edge.in_features, edge_index.size(1), x.dtype))
        with torch.autocast(x.device.type, enabled=False):
            (q,) = at_least_float32(q)
            kinds = self.edge_type.to(q.dtype).view(-1, *q.shape[1:])
            edge = None if edge is None else edge.to(q.dtype).view(-1, *q.shape[1:])
            dropout = self.dropout if self.training else 0.0
            return typed_edge_problem(q, k, v, where, kinds, edge, dropout), num_graphs, dtype

    def _read_edges(self, graph: Data | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
        tables = read_attributes(self, graph)
        assert graph is not None  # read_attributes has refused None
        if self.expander:
            check_table(self, graph, tables[1], "expander edges")
            same = graph.get("expander_virtual", self.num_virtual) == self.num_virtual
            message = f"the attention has num_virtual={self.num_virtual}, but AddExpanderEdges was given another number"
            if not (holds(same.all(), message) if isinstance(same, Tensor) else same):
                raise ValueError(message)
        check_rows(graph, num_nodes)
        edge_index = read_edges(self, graph)
        return edge_index if self.graph_edges else edge_index[:, :0], tables[0] if self.expander else None
