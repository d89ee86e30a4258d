"""A stack of GraphGPS layers with an encoder and a head."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import LazyLinear, Linear, Module
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice, check_dtype, check_integer
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.gps_layer import Part, check_conv_kwargs
from pyg_topomask.nn.gps_network import GPSNetwork
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.graph_attributes import OF_EDGES, check_homogeneous, graph_of, one_line, with_attributes
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head.mlp import MLPHead
from pyg_topomask.nn.hub import Shareable
from pyg_topomask.nn.norm import build_act, build_norm
from pyg_topomask.nn.pool import POOLS, count_graphs, pool_nodes
from pyg_topomask.plan import Plan
from pyg_topomask.typing import Adj


class GPSModel(Shareable, GPSNetwork):
    """A `GPSNetwork` with a linear encoder, optional pooling and an MLP head, called with tensors.

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
            attention reads tables of the nodes or a bias of node pairs; also as :class:`GPSStack`.
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
        check_choice("pool", pool, (*POOLS, "graph_token", None))
        head_layers = check_integer("head_layers", head_layers, 1)
        settings |= {"norm": norm, "dropout": dropout, "act": act, "pre_norm": pre_norm}
        encoder, edge_encoder = (_linear(width, channels) for width in (in_channels, edge_dim))
        layers = GPSStack(channels, num_layers, conv, attn, **settings)
        check_conv_kwargs((conv for layer in layers for conv in layer.convs), {"edge_attr": edge_dim})
        norm_out = build_norm(norm, channels, settings.get("norm_kwargs")) if pre_norm else None
        reads_token = pool == "graph_token"
        token = GraphToken(channels) if reads_token else None
        head = MLPHead(channels, out_channels, head_layers, dropout, build_act(act, settings.get("act_kwargs")))
        super().__init__(encoder, layers, head, edge_encoder, None, None, dropout, token, reads_token, norm_out)
        self.pool, self.transform = pool, transform
        self.in_channels, self.channels, self.out_channels = in_channels, channels, out_channels

    def _edge_readers(self, layers: GPSStack) -> list[Attention]:
        """None: attentions read the graph's own edge features."""
        return []

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Read weights of earlier versions as well, which had two other names."""
        for old, new in (("encoder.", "node_encoder."), ("token.", "graph_token.")):
            is_new = any(name.startswith(prefix + new) for name in state_dict)  # a subclass may have a part `old`
            for name in [name for name in state_dict if name.startswith(prefix + old) and not is_new]:
                state_dict[prefix + new + name.removeprefix(prefix + old)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    if TYPE_CHECKING:

        def __call__(self, *inputs: Any, **more: Any) -> Tensor: ...  # type: ignore[override]

    def __repr__(self) -> str:
        widths = f"{self.in_channels}, {self.channels}, {self.out_channels}"
        return f"GPSModel({widths}, layers={one_line(self.layers)}, pool={self.pool})"

    def forward(  # type: ignore[override]
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
            edge_attr: Edge features, shape ``[E, edge_dim]``, or ``[E]`` for 1, if the model has ``edge_dim``.
            **conv_kwargs: Further arguments of the convolutions, such as ``edge_type`` of ``RGCNConv``, as in
                :meth:`GPSLayer.forward`. Without ``graph``, walks and masks read ``edge_weight`` and ``edge_type``,
                too. With a graph token, they must be of edges, or ``pe``.

        Raises:
            TypeError: If ``batch`` is no tensor, ``edge_index`` is none in a model with a graph token, no convolution
                accepts an argument, features are no tensor of the parameters' dtype, or ``graph`` is a ``HeteroData``.
            ValueError: If there are edge features without ``edge_dim``, or ``edge_dim`` without edge features.
            RuntimeError: If ``torch.export`` meets an attention that needs a plan, and there is none
                (:func:`~pyg_topomask.nn.export_model` makes it).
        """
        check_homogeneous(graph)
        check_dtype(self.node_encoder, x)
        if plan is not None:
            batch, graph = plan.batch, None
        elif graph is not None and not isinstance(graph, Data):
            graph = with_attributes(Data(), **graph)
        elif graph is None and (self.transform is not None or not self.requires):
            graph = graph_of(edge_index, x.size(0), batch, self.transform, conv_kwargs)
            taken = {key: value for key, value in conv_kwargs.items() if key not in OF_EDGES or self.layers.takes(key)}
            conv_kwargs = {"edge_weight": None} | taken  # that of the made graph may be of added edges
        if batch is None and graph is not None:
            batch = graph.get("batch")
        with plans.read(plan):
            conv_kwargs["edge_attr"] = self._encode_edges(edge_attr)
            x = self._run_layers(self.node_encoder(x), edge_index, batch, graph, plan, conv_kwargs)
            if self.pool in POOLS:
                num_graphs = count_graphs(graph, batch) if plan is None else plan.num_graphs
                x = pool_nodes(x, batch, num_graphs, self.pool)
            return self.head(x)

    def _encode_edges(self, edge_attr: Tensor | None) -> Tensor | None:
        if self.edge_encoder is None and edge_attr is None:
            return None
        if edge_attr is None:
            raise ValueError("the model has an 'edge_dim', but 'edge_attr' is None: pass edge_attr=graph.edge_attr")
        if self.edge_encoder is None:
            raise ValueError("the model has no 'edge_dim', but 'edge_attr' is given: build the model with edge_dim")
        check_dtype(self.edge_encoder, edge_attr, "edge_attr")
        return self.edge_encoder(edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr)


def _linear(in_channels: int | None, out_channels: int) -> Any:
    """A linear map; None without an input."""
    if in_channels is None:
        return None
    return LazyLinear(out_channels) if in_channels == -1 else Linear(in_channels, out_channels)
