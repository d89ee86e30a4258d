"""A stack of GraphGPS layers with an encoder and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import LazyLinear, Linear, Module
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice, check_dtype, check_integer
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.edge_probe import Explained
from pyg_topomask.nn.gps_layer import Part
from pyg_topomask.nn.gps_stack import GPSStack, plan_with_tokens
from pyg_topomask.nn.graph_attributes import OF_EDGES, check_homogeneous, graph_of, one_line, with_attributes
from pyg_topomask.nn.graph_token import GraphToken, among_tokens, check_tokens
from pyg_topomask.nn.head.mlp import MLPHead
from pyg_topomask.nn.hub import Shareable
from pyg_topomask.nn.norm import apply_norm, build_act, build_norm
from pyg_topomask.nn.pool import POOLS, count_graphs, pool_nodes
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.ops.csr import is_sparse
from pyg_topomask.plan import Plan
from pyg_topomask.typing import Adj


class GPSModel(Shareable, Explained, Resettable):
    """A linear encoder, GraphGPS layers, optional pooling, and an MLP head.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454.

    ``torch.compile(model, dynamic=True)`` compiles the model once for batches of all sizes. If the batch has lists,
    such as names of the graphs, it is compiled again for each number of graphs. Leave them out by the argument
    ``exclude_keys`` of PyG's ``DataLoader``.

    Args:
        in_channels: Width of the node features; −1 takes it from the first graph, as in PyG. Build optimizers after it.
        channels: Width ``C`` of the layers.
        out_channels: Width of the output: the number of classes or targets.
        num_layers: Number of layers.
        conv: Function of the layer's number (from 0) that returns its convolution, or a list of several; or the name of
            all, such as ``"gcn"``. No message passing if :obj:`None`.
        attn: The same for the attention, such as ``lambda layer: GRFAttention(64, heads=4)`` or ``"grf"``. No global
            attention if :obj:`None`.
        edge_dim: Width of the edge features (or −1), which are encoded to ``C`` and given to the convolution as
            ``edge_attr``. Edge features are not used if :obj:`None`.
        pool: ``"mean"``, ``"add"`` or ``"max"`` over each graph's nodes; ``"graph_token"`` predicts from a graph token,
            one more node per graph that all attentions see and masks leave alone
            (:class:`~pyg_topomask.operators.BorderedOperator`); predictions per node if :obj:`None`.
        norm: ``"batch_norm"``, ``"layer_norm"``, ``"node_layer_norm"``, ``"graph_norm"``, the name of another norm of
            PyG, a module or :obj:`None`; :class:`GPSLayer` says how they differ.
        dropout: Probability of zeroing an entry after the encoder, in the layers and in the head, in training.
        act: Activation of the layers and the head, by PyG's names.
        head_layers: Number of linear layers in the head.
        pre_norm: Whether to normalise the input of each part of a layer and not its output, with one more norm after
            the last layer.
        transform: What adds the attributes `requires` if the model is called without ``graph``, such as
            ``AddRandomWalks()``. It runs in each call; stored attributes cost less.
        **settings: Further arguments of the :class:`GPSStack`: ``checkpoint``, ``feed_forward``, ``heads``,
            ``attn_kwargs``, ``norm_kwargs`` and ``act_kwargs``.

    Raises:
        TypeError: If ``conv`` or ``attn`` is neither a name nor a function, a count is not an integer, or there are
            edge features, but no convolution accepts them.
        ValueError: If a name is unknown, a count is not positive, or with a graph token no layer has attention or an
            attention reads tables of the nodes or a bias of node pairs.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        out_channels: int,
        num_layers: int,
        conv: Callable[[int], Part | Sequence[Part]] | str | None = None,
        attn: Callable[[int], Part | Sequence[Part]] | str | None = None,
        edge_dim: int | None = None,
        pool: str | None = None,
        norm: str | Module | None = "batch_norm",
        dropout: float = 0.0,
        act: str | Module = "relu",
        head_layers: int = 1,
        pre_norm: bool = False,
        transform: Callable[[Data], Data] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        check_choice("pool", pool, (*POOLS, "graph_token", None))
        head_layers = check_integer("head_layers", head_layers, 1)
        self.pool, self.transform = pool, transform
        self.in_channels, self.channels, self.out_channels = in_channels, channels, out_channels
        self.encoder = _linear(in_channels, channels)
        self.edge_encoder = _linear(edge_dim, channels) if edge_dim is not None else None
        self.dropout = Dropout(dropout)
        settings |= {"norm": norm, "dropout": dropout, "act": act, "pre_norm": pre_norm}
        self.layers = GPSStack(channels, num_layers, conv, attn, **settings)
        if edge_dim is not None and not self.layers.takes("edge_attr"):
            raise TypeError(f"edge_dim={edge_dim}, but no convolution takes 'edge_attr'; leave out 'edge_dim'")
        self.norm_out = build_norm(norm, channels, settings.get("norm_kwargs")) if pre_norm else None
        self.token = GraphToken(channels) if pool == "graph_token" else None
        if self.token is not None:
            check_tokens(self.layers, predicts=True)
        self.head = MLPHead(channels, out_channels, head_layers, dropout, build_act(act, settings.get("act_kwargs")))

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, without repetition."""
        return self.layers.requires

    def __repr__(self) -> str:
        widths = f"{self.in_channels}, {self.channels}, {self.out_channels}"
        return f"GPSModel({widths}, layers={one_line(self.layers)}, pool={self.pool})"

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None = None,
        graph: Data | Mapping[str, Tensor] | None = None,
        edge_attr: Tensor | None = None,
        plan: Plan | None = None,
        **conv_kwargs: Any,
    ) -> Tensor:
        """Predict for each node, ``[N, out_channels]``, or for each graph if pooling, ``[B, out_channels]``.

        Args:
            x: Node features, shape ``[N, in_channels]``.
            edge_index: Edges, shape ``[2, E]``, or a sparse ``adj_t``.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with the attributes `requires`, or a dictionary of them. If :obj:`None`, it
                is made of the other arguments, and ``transform`` is applied to it.
            plan: What `plan` has found of the graph, which replaces ``graph``.
            edge_attr: Edge features, shape ``[E, edge_dim]``, if the model has ``edge_dim``.
            **conv_kwargs: Further arguments of the convolutions, such as ``edge_type`` of ``RGCNConv``, as in
                :meth:`GPSLayer.forward`. Without ``graph``, walks and masks read ``edge_weight`` and ``edge_type``,
                too. With a graph token, they must be of edges, or ``pe``.

        Raises:
            TypeError: If ``batch`` is no tensor, ``edge_index`` is none in a model with a graph token, or no
                convolution accepts an argument.
            ValueError: If there are edge features without ``edge_dim``, or ``edge_dim`` without edge features.
            RuntimeError: If ``torch.export`` meets a graph token.
        """
        if plan is not None:
            if plan.given.get("edge_weight") is not None and "edge_weight" not in conv_kwargs:
                raise ValueError("the plan is of a graph with 'edge_weight': give the model edge_weight=… as well")
            with plans.read(plan):
                return self._forward(x, edge_index, plan.batch, None, edge_attr, plan, conv_kwargs)
        check_homogeneous(graph)
        if graph is not None and not isinstance(graph, Data):
            graph = with_attributes(Data(), **graph)
        if graph is None and (self.transform is not None or not self.requires):
            graph = graph_of(edge_index, x.size(0), batch, self.transform, conv_kwargs)
            taken = {key: value for key, value in conv_kwargs.items() if key not in OF_EDGES or self.layers.takes(key)}
            conv_kwargs = {"edge_weight": None} | taken  # that of the made graph may be of added edges
        if batch is None and graph is not None:
            batch = graph.get("batch")
        return self._forward(x, edge_index, batch, graph, edge_attr, None, conv_kwargs)

    def plan(self, graph: Data) -> Plan:
        """What the model has to know of a batch, for ``model(x, edge_index, plan=plan)``; see :class:`Plan`.

        Args:
            graph: The ``Data`` or ``Batch`` with the attributes `requires`, to which ``transform`` is not applied.

        Raises:
            ValueError: If an attribute is missing, or requires a gradient.
        """
        return plan_with_tokens(self.layers, graph, self.token)

    def _forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None,
        graph: Data | None,
        edge_attr: Tensor | None,
        plan: Plan | None,
        conv_kwargs: dict[str, Any],
    ) -> Tensor:
        edge_attr = self._encode_edges(edge_attr)
        num_graphs = count_graphs(graph, batch) if plan is None else plan.num_graphs
        check_dtype(self.encoder, x)
        x = self.encoder(x)
        x, tokens = self.dropout(x), None
        if self.token is not None:
            given = _graph_for_tokens(edge_index, batch, graph)
            x, with_tokens, _, position, tokens = self.token.insert(x, given, num_graphs)
            if conv_kwargs.get("pe") is not None:
                conv_kwargs["pe"] = among_tokens(conv_kwargs["pe"], position, x.size(0))
            graph, edge_index, batch = with_tokens, with_tokens.edge_index, with_tokens.batch
        x = self.layers(x, edge_index, batch, graph, num_graphs, plan, edge_attr=edge_attr, **conv_kwargs)
        x = apply_norm(self.norm_out, x, batch)
        if tokens is not None:
            x = x.index_select(0, tokens)
        elif self.pool is not None:
            x = pool_nodes(x, batch, num_graphs, self.pool)
        return self.head(x)

    def _encode_edges(self, edge_attr: Tensor | None) -> Tensor | None:
        if (self.edge_encoder is None) == (edge_attr is None):
            return edge_attr if self.edge_encoder is None else self.edge_encoder(edge_attr)
        if edge_attr is None:
            raise ValueError("the model has an 'edge_dim', but 'edge_attr' is None: pass edge_attr=graph.edge_attr")
        raise ValueError("the model has no 'edge_dim', but 'edge_attr' is given: build the model with edge_dim")


def _graph_for_tokens(edge_index: Adj, batch: Tensor | None, graph: Data | None) -> Data:
    """The graph with the edges and the batch, which a graph token changes."""
    if not isinstance(edge_index, Tensor) or is_sparse(edge_index):
        got = getattr(edge_index, "layout", type(edge_index).__name__)
        raise TypeError(f"a graph token needs 'edge_index' as a tensor [2, E] (got {got})")
    given = {"edge_index": edge_index} | ({} if batch is None else {"batch": batch})
    return with_attributes(Data() if graph is None else graph, **given)


def _linear(in_channels: int, out_channels: int) -> Module:
    return LazyLinear(out_channels) if in_channels == -1 else Linear(in_channels, out_channels)
