"""A complete network that reads a graph: encoders, GraphGPS layers and a head."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_topomask import plan as plans
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.edge_probe import Explained
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.graph_attributes import batch_of, check_homogeneous, requirements_of, with_attributes
from pyg_topomask.nn.graph_token import GraphToken, among_tokens, check_tokens
from pyg_topomask.nn.norm import apply_norm
from pyg_topomask.nn.planning import as_learned, for_plan, of_graph
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.ops.csr import is_sparse, stored_edges
from pyg_topomask.plan import Plan
from pyg_topomask.typing import Adj

BIAS = "attn_bias"
"""Graph attribute with the bias of node pairs, which ``FullAttention(…, attn_bias="attn_bias")`` reads."""


class GPSNetwork(Explained, Resettable):
    """Encoders, a `GPSStack` and a head, called as ``network(graph)``.

    Reference: Rampášek et al., *Recipe for a General, Powerful, Scalable Graph Transformer*, NeurIPS 2022,
    arXiv:2205.12454.

    .. code-block:: python

        encoder = ComposedNodeEncoder(96, AtomEncoder, [LapPE(16)])
        layers = GPSStack(96, 4, lambda n: GatedGCN(96, update_edges=n < 3), lambda n: KMIPAttention(96, 4))
        network = GPSNetwork(encoder, layers, HEADS["graph"](96, 10), edge_encoder=BondEncoder(96))
        prediction = network(batch)  # [B, 10]

    Args:
        node_encoder: Module ``encoder(graph) → [N, C]``.
        layers: The layers, of width ``C``.
        head: Module ``head(x, graph)`` that returns the prediction.
        edge_encoder: Module ``encoder(graph) → [E, C]``, for convolutions that accept ``edge_attr`` and for attentions
            with ``edge_dim``, which read its output as ``graph.edge_attr``. It is left out if there are none of these.
        pe_encoder: Module ``encoder(graph) → [N, *]``, for convolutions that accept ``pe``.
        bias_encoder: Module ``encoder(graph) → [P, H]`` for all pairs of nodes. Attention reads its output as
            ``graph.attn_bias``.
        dropout: Probability of zeroing an entry after the node encoder, in training.
        graph_token: Adds a node to each graph that the layers see. The head sees only the other nodes, or with
            ``pool_token`` only this one.
        pool_token: Whether the head gets the graph tokens instead of the nodes. Its pooling then has no effect.
        norm_out: Norm of the nodes after the last layer, for layers with ``pre_norm``.

    Raises:
        ValueError: If widths differ; if an attention has ``edge_dim`` and there is no ``edge_encoder``; if no
            convolution accepts the output of ``pe_encoder``; if there is a ``pool_token`` without a ``graph_token`` or
            without attention, which alone lets a token see its graph; or if there is a ``graph_token`` and an attention
            reads tables of the nodes, such as expander edges, or a bias that the token does not extend.
    """

    def __init__(
        self,
        node_encoder: Module,
        layers: GPSStack,
        head: Module,
        edge_encoder: Module | None = None,
        pe_encoder: Module | None = None,
        bias_encoder: Module | None = None,
        dropout: float = 0.0,
        graph_token: GraphToken | None = None,
        pool_token: bool = False,
        norm_out: Module | None = None,
    ) -> None:
        super().__init__()
        readers = self._edge_readers(layers)
        self.attends_edges = bool(readers)
        takes_edges = layers.takes("edge_attr") or self.attends_edges
        for name, part in (("node_encoder", node_encoder), ("edge_encoder", edge_encoder if takes_edges else None)):
            width = getattr(part, "channels", layers.channels)
            if width != layers.channels:
                raise ValueError(f"'{name}' gives {width} channels, but the layers have {layers.channels}")
        if pe_encoder is not None and not layers.takes("pe"):
            raise ValueError("'pe_encoder' is given, but no convolution takes 'pe'; GatedGCN and StableGINEConv do")
        self.node_encoder, self.pe_encoder, self.bias_encoder = node_encoder, pe_encoder, bias_encoder
        self.edge_encoder = edge_encoder if takes_edges else None
        if readers and edge_encoder is None:
            raise ValueError(
                f"{type(readers[0]).__name__} has edge_dim={readers[0].edge_dim} and reads encoded edge features, but "
                f"there is no 'edge_encoder'; give one, such as LinearEdgeEncoder({layers.channels}, …)"
            )
        if pool_token and graph_token is None:
            raise ValueError("'pool_token' needs a 'graph_token'")
        if graph_token is not None:
            extends_bias = bias_encoder is not None and graph_token.pair is not None
            check_tokens(layers, pool_token, BIAS if extends_bias else None)
        self.dropout, self.graph_token, self.pool_token = Dropout(dropout), graph_token, pool_token
        self.layers, self.norm_out, self.head = layers, norm_out, head

    def _edge_readers(self, layers: GPSStack) -> list[Attention]:
        """Attentions that read encoded edge features."""
        attentions = [attn for layer in layers for attn in layer.attentions]
        return [attn for attn in attentions if isinstance(attn, Attention) and attn.edge_dim is not None]

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, without repetition."""
        parts = (self.node_encoder, self.edge_encoder, self.pe_encoder, self.bias_encoder, self.layers)
        computed = set() if self.bias_encoder is None else {BIAS}
        return tuple(name for name in requirements_of(*parts) if name not in computed)

    if TYPE_CHECKING:

        def __call__(self, graph: Data | Batch, plan: Plan | None = None) -> Tensor: ...  # type: ignore[override]

    @torch.inference_mode(False)
    def plan(self, graph: Data) -> Plan:
        """What the attentions have to know of a batch, for ``network(graph, plan=plan)``; see :class:`Plan`.

        Args:
            graph: The ``Data`` or ``Batch`` with the attributes `requires`.

        Raises:
            ValueError: If an attribute is missing, or requires a gradient.
        """
        check_homogeneous(graph)
        graph = for_plan(graph)
        batch, channels = batch_of(graph), self.layers.channels
        given = of_graph(graph, batch, (), ("edge_attr",))
        encoded = {}  # what comes with each run, and may have a gradient
        if self.attends_edges:
            encoded["edge_attr"] = batch.new_zeros(graph.edge_index.size(1), channels, dtype=torch.float32)
        if self.graph_token is not None:
            with as_learned(self.graph_token, batch.device):
                nodes, graph = batch.new_empty(batch.numel(), channels), with_attributes(graph, batch=batch)
                graph = self.graph_token.insert(nodes, graph, len(given["ptr"]) - 1)[1]
            batch = graph["batch"]
        if self.bias_encoder is not None:
            encoded[BIAS] = batch.new_zeros(int(batch.bincount().square().sum()), 1, dtype=torch.float32)
        graph = with_attributes(graph, **{name: x.requires_grad_() for name, x in encoded.items()})
        return Plan(given, parts=self.layers.plan(graph, batch).parts)

    def forward(self, graph: Data, plan: Plan | None = None) -> Tensor:
        """The head's prediction for a ``Data`` or ``Batch``.

        Args:
            graph: The graph, which encoders, convolutions and the head read.
            plan: What `plan` has found of it, which the attentions read instead.
        """
        with plans.read(plan):
            x = self.embed(graph, plan)
            if self.pool_token:  # one token per graph
                ptr = torch.arange(x.size(0) + 1, device=x.device)
                graph = with_attributes(Data(), x=x, batch=ptr[:-1], ptr=ptr)
            return self.head(x, graph)

    def embed(self, graph: Data, plan: Plan | None = None) -> Tensor:
        """The nodes after the last layer, ``[N, C]``, or with ``pool_token`` the tokens, ``[B, C]``."""
        encoders = {"edge_attr": self.edge_encoder, "pe": self.pe_encoder, BIAS: self.bias_encoder}
        x, given = self.node_encoder(graph), {name: part(graph) for name, part in encoders.items() if part is not None}
        of_graph = [BIAS] * (BIAS in given) + ["edge_attr"] * self.attends_edges
        graph = with_attributes(graph, **{name: given[name] for name in of_graph}) if of_graph else graph
        given["edge_type"] = graph.get("edge_type")
        of_convs = {name: x for name, x in given.items() if name != BIAS and self.layers.takes(name)}
        return self._run_layers(x, stored_edges(graph), graph.get("batch"), graph, plan, of_convs)

    def _run_layers(
        self, x: Tensor, edge_index: Adj, batch: Tensor | None, graph: Any, plan: Plan | None, given: dict[str, Any]
    ) -> Tensor:
        """The result of `embed` for encoded nodes, and arguments that are given to the convolutions."""
        num_graphs = count_graphs(graph, batch) if plan is None else plan.num_graphs
        x, kept = self.dropout(x), None
        if self.graph_token is not None:
            graph = _graph_for_tokens(edge_index, batch, graph)
            bias = None if self.bias_encoder is None else graph[BIAS]
            x, graph, bias, position, tokens = self.graph_token.insert(x, graph, num_graphs, bias)
            graph = graph if bias is None else with_attributes(graph, **{BIAS: bias})
            edge_index, batch, kept = graph.edge_index, graph.batch, tokens if self.pool_token else position
            if given.get("pe") is not None:
                given["pe"] = among_tokens(given["pe"], position, x.size(0))
        x = self.layers(x, edge_index, batch, graph, num_graphs, plan, **given)
        x = apply_norm(self.norm_out, x, batch)
        return x if kept is None else x.index_select(0, kept)


def _graph_for_tokens(edge_index: Adj, batch: Tensor | None, graph: Data | None) -> Data:
    """The graph with the edges and the batch, which a graph token changes."""
    if not isinstance(edge_index, Tensor) or is_sparse(edge_index):
        got = getattr(edge_index, "layout", type(edge_index).__name__)
        raise TypeError(f"a graph token needs 'edge_index' as a tensor [2, E] (got {got})")
    given = {"edge_index": edge_index} | ({} if batch is None else {"batch": batch})
    return with_attributes(Data() if graph is None else graph, **given)
