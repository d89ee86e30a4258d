"""Attention along the edges of the graph, of an expander graph, and to and from virtual nodes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Linear, Parameter
from torch_geometric.data import Data

from pyg_topomask.checks import check_dropout, check_integer
from pyg_topomask.nn.attention.base import Attention, check_input
from pyg_topomask.nn.graph_attributes import check_table_size, read_attributes, read_edge_attr, read_edges
from pyg_topomask.ops.attention.edge_softmax import edge_scores, edge_softmax_attention, typed_edges
from pyg_topomask.ops.attention.inputs import from_origin
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import segments


class ExphormerAttention(Attention):
    r"""Sparse softmax attention of each node to its neighbours, its expander neighbours and its graph's virtual nodes.

    .. math:: \mathrm{out}_i = W_O \big\Vert_h \sum_{j \to i}
        \mathrm{softmax}_{j}\!\left(q_i^h \cdot (k_j^h \odot e_{ji}^h) / \sqrt{D}\right) v_j^h

    The edge vector :math:`e_{ji}` is a learned one of the edge's type (graph edge, expander edge, to and from a
    virtual node) and, with ``edge_dim``, a linear map of ``edge_attr`` on graph edges. A type's vector starts as ones,
    so that attention starts as plain dot-product attention. An edge that is there twice counts twice, and a node
    without any edge gets the output of zero values.

    Virtual nodes see all nodes of their graph and are seen by all of them. What they have gathered travels to the
    next layer as the carry, which replaces their features there, plus an embedding that each layer learns: so the
    embedding of the first layer is where they start, and those of later layers have a gradient, too. What the virtual
    nodes of the last layer gather is not used; only the row of ``edge_type`` for edges to virtual nodes then has a
    zero gradient there.

    Reference: Shirzad et al., *Exphormer: Sparse Transformers for Graphs*, ICML 2023, arXiv:2303.06147. As in the
    paper, weights are a softmax and heads are mixed by :math:`W_O`; the authors' program cuts scores to [−5, 5]
    before the exponential, which stops their gradient, adds 1e-6 to the denominator, which shrinks the output of
    nodes with low scores, and has no :math:`W_O`.
    Cost: :math:`O((E + E' + N V) C)` operations and :math:`O(E + E' + N (V + C))` memory for ``E'`` expander edges,
    and :math:`O(E C)` memory with ``edge_dim``.

    The graph must carry expander edges: :class:`~pyg_topomask.transforms.AddExpanderEdges`.

    Args:
        channels: Width ``C`` of input and output.
        heads: Heads ``H``; each has ``C / H`` channels.
        num_virtual: Virtual nodes of each graph ``V``. 1 by default; the authors' configs have 0 to 6.
        edge_dim: Width of ``graph.edge_attr`` (``[E, edge_dim]``, or ``[E]`` for 1), which then enters the attention.
            It may be the output of an encoder that runs before the model; gradients reach it.
        expander: Whether there are expander edges; without, graph edges and virtual nodes remain, as in the authors'
            configs with ``prep.exp: False``.
        graph_edges: Whether nodes see their neighbours in the graph; without, expander edges and virtual nodes remain,
            as in the authors' ablation with ``prep.add_edge_index: False``, and ``edge_dim`` has no use.
        dropout: Probability of zeroing a normalised attention weight, in training.
        bias: Whether the projections have a bias.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``; carry: ``[B, V, C]``

    Raises:
        TypeError: If a size or count is no integer.
        ValueError: If ``heads`` does not divide ``channels`` or a size is out of range.
    """

    config_keys: ClassVar[dict[str, str]] = {
        "heads": "gt.n_heads",
        "num_virtual": "prep.num_virt_node",
        "edge_dim": "dataset.edge_encoder",
        "expander": "prep.exp",
        "dropout": "gt.attn_dropout",
        "graph_edges": "prep.add_edge_index",
    }

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
        if edge_dim is not None:
            edge_dim = check_integer("edge_dim", edge_dim, 1)
        if not graph_edges and edge_dim is not None:
            raise ValueError(f"edge_dim={edge_dim} is of graph edges, and 'graph_edges' is false")
        check_dropout(dropout)
        self.num_virtual, self.edge_dim, self.dropout = num_virtual, edge_dim, dropout
        self.expander, self.graph_edges, self.requires = expander, graph_edges, self.requirements(expander=expander)
        self.qkv = Linear(channels, 3 * channels, bias=bias)
        self.out = Linear(channels, channels, bias=bias)
        self.edge = Linear(edge_dim, channels, bias=False) if edge_dim is not None else None
        self.edge_type = Parameter(torch.empty(1 + expander + 2 * (num_virtual > 0), channels))
        self.virtual = Parameter(torch.empty(num_virtual, channels)) if num_virtual else None
        self.reset_parameters()

    @classmethod
    def requirements(cls, *, expander: bool = True, **settings: Any) -> tuple[str, ...]:
        """The expander edges, if there are any; the graph's own edges come besides."""
        return ("expander_index", "expander_size") if expander else ()

    def reset_parameters(self) -> None:
        """Draw the projections and embeddings afresh."""
        super().reset_parameters()
        with torch.no_grad():
            self.edge_type.fill_(1)
            if self.virtual is not None:
                self.virtual.normal_()

    def initial_carry(self, num_graphs: int) -> Tensor:
        """The state of the virtual nodes before the first layer: zeros, shape ``[B, V, C]``."""
        return self.edge_type.new_zeros(num_graphs, self.num_virtual, self.channels)

    def forward(
        self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, carry: Tensor | None = None
    ) -> Any:
        """Attend, ``[N, C] → [N, C]``. ``batch=None`` means ``graph.batch`` where there is one, else one graph.

        Args:
            x: Nodes, shape ``[N, C]``.
            batch: Graph of each node, sorted, shape ``[N]``.
            graph: The ``Data`` or ``Batch``, with expander edges.
            carry: What the virtual nodes gathered in the layer before, shape ``[B, V, C]``. Without it they start
                afresh.

        Returns:
            The nodes; with a carry, ``(nodes, carry)``.

        Raises:
            ValueError: If a shape is wrong, a feature is not finite, ``batch`` is not sorted, or the graph lacks edges
                or has those of another graph.
        """
        batch = check_input(x, self.channels, batch, graph)
        num_nodes, num_graphs = x.size(0), 1 if batch is None else segments(batch).num_graphs
        if carry is not None:
            num_graphs = self._check_carry(carry, num_graphs)
        edge_index, expander_index = self._read_edges(graph, num_nodes)
        virtual = self._virtual_nodes(carry, num_graphs)
        edges = typed_edges(edge_index, expander_index, batch, num_nodes, num_graphs, self.num_virtual)
        nodes = x if virtual is None else torch.cat([x, virtual.to(x.dtype)])
        q, k, v = self.qkv(nodes).view(nodes.size(0), 3, self.heads, self.channels // self.heads).unbind(dim=1)
        dtype = v.dtype
        edge = None
        if self.edge is not None:
            edge = self.edge(read_edge_attr(graph, self.edge.in_features, edge_index.size(1), x.dtype))
        with torch.autocast(x.device.type, enabled=False):  # sums over neighbours need float32
            q, k, v = at_least_float32(q, k, v)
            score = None
            if edge is not None:
                score = edge_scores(q, k, edge.to(q.dtype).view(-1, *q.shape[1:]), edge_index)
            dropout = self.dropout if self.training else 0.0
            v, origin = (v, None) if dropout else self._from_origin(v, batch, num_nodes, num_graphs)
            out = edge_softmax_attention(q, self._typed_keys(k, num_nodes), v, edges, score, dropout, origin)
        out = self.out(out.to(dtype).flatten(1))
        if carry is None:
            return out[:num_nodes]
        return out[:num_nodes], out[num_nodes:].view(num_graphs, self.num_virtual, self.channels)

    def _from_origin(
        self, v: Tensor, batch: Tensor | None, num_nodes: int, num_graphs: int
    ) -> tuple[Tensor, Tensor | None]:
        """`from_origin` of the real nodes ``v[:N]``, and the same origins for their graphs' virtual nodes."""
        _, origin = from_origin(v[:num_nodes], batch)
        if origin is None:
            return v, None
        graph = torch.zeros(num_nodes, dtype=torch.long, device=v.device) if batch is None else batch.long()
        of_graph = v.new_zeros(num_graphs, *v.shape[1:]).index_copy(0, graph, origin.expand(num_nodes, -1, -1))
        origin = torch.cat([of_graph.index_select(0, graph), of_graph.repeat_interleave(self.num_virtual, dim=0)])
        return v - origin, origin

    def _check_carry(self, carry: Tensor, num_graphs: int) -> int:
        """Number of graphs, those without a node included."""
        shape = carry.shape if isinstance(carry, Tensor) else ()
        if len(shape) != 3 or shape[0] < num_graphs or shape[1:] != (self.num_virtual, self.channels):
            got = list(shape) if isinstance(carry, Tensor) else type(carry).__name__
            raise ValueError(
                f"'carry' must have shape [{num_graphs}, {self.num_virtual}, {self.channels}], graphs × virtual nodes "
                f"× channels (got {got}); start from initial_carry(num_graphs)"
            )
        return carry.size(0)

    def _read_edges(self, graph: Data | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
        remedy = f"AddExpanderEdges(num_virtual={self.num_virtual})"
        tables = read_attributes(self, graph, self.requires, f"the transform {remedy}")
        assert graph is not None  # read_attributes has refused None
        if self.expander:
            check_table_size(graph, tables[1], remedy, "expander edges")
            self._check_num_virtual(graph.get("expander_virtual"))
            if graph.num_nodes != num_nodes:
                raise ValueError(f"the graph has {graph.num_nodes} nodes, but 'x' has {num_nodes} rows")
        edge_index = read_edges(self, graph)
        return edge_index if self.graph_edges else edge_index[:, :0], tables[0] if self.expander else None

    def _check_num_virtual(self, prepared: int | Tensor | None) -> None:
        """Refuse graphs that were prepared for another number of virtual nodes; on CUDA without waiting."""
        if prepared is None:
            return
        same = (torch.as_tensor(prepared) == self.num_virtual).all()
        message = (
            f"the attention has num_virtual={self.num_virtual}, but AddExpanderEdges was given another number; give "
            "both the same"
        )
        if same.is_cuda:
            torch._assert_async(same, message)
        elif not bool(same):
            raise ValueError(message)

    def _virtual_nodes(self, carry: Tensor | None, num_graphs: int) -> Tensor | None:  # [B V, C]
        if self.virtual is None:
            return None
        if carry is None:
            return self.virtual.repeat(num_graphs, 1)
        return (carry + self.virtual).flatten(0, 1)

    def _typed_keys(self, k: Tensor, num_nodes: int) -> Tensor:
        """Keys of real nodes times the vector of each type that they send, then those of virtual nodes."""
        kinds = self.edge_type.to(k.dtype).view(-1, self.heads, self.channels // self.heads)
        if self.virtual is None:
            return (kinds[:, None] * k).flatten(0, 1)
        real = (kinds[:-1, None] * k[:num_nodes]).flatten(0, 1)
        return torch.cat([real, kinds[-1] * k[num_nodes:]])

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, heads={self.heads}, num_virtual={self.num_virtual}, edge_dim={self.edge_dim}, "
            f"expander={self.expander}, dropout={self.dropout}"
        )
