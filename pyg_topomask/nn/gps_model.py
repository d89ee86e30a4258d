"""A stack of GraphGPS layers with an encoder and a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.head import MLPHead
from pyg_topomask.nn.pool import POOLS, count_graphs, pool_nodes
from pyg_topomask.typing import Adj


class GPSModel(Module):
    """Linear encoder, GraphGPS layers, pooling where asked for, and an MLP head.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454.

    Args:
        in_channels: Width of the node features.
        channels: Width ``C`` of the layers.
        out_channels: Width of the output: classes or targets.
        num_layers: Layers.
        conv: Function of the layer's number that returns its convolution; no local branch if :obj:`None`.
        attn: Function of the layer's number that returns its attention; no global branch if :obj:`None`.
        edge_dim: Width of the edge features, encoded to ``C`` and given to the convolution as ``edge_attr``; edge
            features are not used if :obj:`None`.
        pool: ``"mean"``, ``"add"`` or ``"max"`` over each graph's nodes; predictions per node if :obj:`None`.
        norm: Norm of the layers: ``"batch_norm"``, ``"layer_norm"``, ``"graph_norm"`` or :obj:`None`.
        dropout: Probability of zeroing after the encoder, in the layers and in the head, in training.
        act: Activation of the layers and the head, by PyG's names.
        feed_forward: Whether layers have their MLP.
        head_layers: Linear layers of the head.
        input_dropout: Probability of zeroing node features, in training; helps on sparse bags of words.
        checkpoint: Whether layers are computed again in the backward pass, to save memory (`GPSStack`).

    Raises:
        TypeError: If ``conv`` or ``attn`` is a module or a class instead of a function.
        ValueError: If a name is unknown or ``num_layers`` is not positive.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        out_channels: int,
        num_layers: int,
        conv: Callable[[int], Module | Sequence[Module]] | None = None,
        attn: Callable[[int], Module | Sequence[Module]] | None = None,
        edge_dim: int | None = None,
        pool: str | None = None,
        norm: str | None = "batch_norm",
        dropout: float = 0.0,
        act: str = "relu",
        feed_forward: bool = True,
        head_layers: int = 1,
        input_dropout: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        if pool is not None and pool not in POOLS:
            raise ValueError(f"'pool' must be one of {', '.join(POOLS)} or None (got {pool!r})")
        head_layers = check_integer("head_layers", head_layers, 1)
        self.pool = pool
        self.encoder = Linear(in_channels, channels)
        self.edge_encoder = Linear(edge_dim, channels) if edge_dim is not None else None
        self.input_dropout, self.dropout = Dropout(input_dropout), Dropout(dropout)
        self.layers = GPSStack(channels, num_layers, conv, attn, norm, dropout, act, feed_forward, checkpoint)
        self.head = MLPHead(channels, out_channels, head_layers, dropout, act)

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, each once."""
        return self.layers.requires

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None = None,
        graph: Data | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Predict for each node, ``[N, out]``, or with a pool for each graph, ``[B, out]``.

        Args:
            x: Node features, shape ``[N, in]``.
            edge_index: Edges, shape ``[2, E]``, or a ``torch_sparse.SparseTensor``.
            batch: Graph of each node, sorted; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with what masks need.
            edge_attr: Edge features, shape ``[E, edge_dim]``, where the model has ``edge_dim``.

        Raises:
            TypeError: If the convolution takes no edge features.
            ValueError: If there are edge features without ``edge_dim``, or the other way round.
        """
        if (self.edge_encoder is None) != (edge_attr is None):
            raise ValueError(
                "the model has no 'edge_dim', but is given 'edge_attr'"
                if edge_attr is not None
                else f"the model has edge_dim={self.edge_encoder.in_features}, but is given no 'edge_attr'"  # type: ignore[union-attr]
            )
        if edge_attr is not None and not self.layers.takes("edge_attr"):
            raise TypeError(
                f"{type(self.layers[0].conv).__name__} takes no 'edge_attr'; build the model without 'edge_dim'"
            )
        if batch is None and graph is not None:
            batch = graph.get("batch")
        num_graphs = count_graphs(graph, batch)
        x = self.dropout(self.encoder(self.input_dropout(x)))
        if self.edge_encoder is not None:
            edge_attr = self.edge_encoder(edge_attr)
        x = self.layers(x, edge_index, batch, graph, num_graphs, edge_attr=edge_attr)
        if self.pool is not None:
            x = pool_nodes(x, batch, num_graphs, self.pool)
        return self.head(x)
