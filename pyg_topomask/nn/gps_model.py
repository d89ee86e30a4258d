"""A stack of GraphGPS layers with an encoder and a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.head import MLPHead
from pyg_topomask.ops.segment import segments
from pyg_topomask.typing import Adj

POOLS = {"mean": global_mean_pool, "add": global_add_pool, "max": global_max_pool}


class GPSModel(Module):
    """Linear encoder, GraphGPS layers, pooling where asked for, and an MLP head.

    Reference: Rampášek et al., NeurIPS 2022, arXiv:2205.12454.

    Args:
        in_channels: Width of the node features.
        channels: Width ``C`` of the layers.
        out_channels: Width of the output: classes or targets.
        num_layers: Layers.
        conv: Function of the layer's number that returns its convolution; no local branch if :obj:`None`.
        attn: Function of the layer's number that returns its attention; no global branch if :obj:`None`. Attentions
            with a method ``tie(first)`` are tied to the first of them: it makes a layer share the parameters that
            belong to the whole stack, such as Primphormer's F.
        edge_dim: Width of the edge features, encoded to ``C`` and given to the convolution as ``edge_attr``; edge
            features are not used if :obj:`None`.
        pool: ``"mean"``, ``"add"`` or ``"max"`` over each graph's nodes; predictions per node if :obj:`None`.
        norm: Norm of the layers: ``"batch_norm"``, ``"layer_norm"`` or :obj:`None`.
        dropout: Probability of zeroing after the encoder, in the layers and in the head, in training.
        act: Activation of the layers and the head, by PyG's names.
        feed_forward: Whether layers have their MLP.
        head_layers: Linear layers of the head.
        input_dropout: Probability of zeroing node features, in training; helps on sparse bags of words.

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
        conv: Callable[[int], Module] | None = None,
        attn: Callable[[int], Module] | None = None,
        edge_dim: int | None = None,
        pool: str | None = None,
        norm: str | None = "batch_norm",
        dropout: float = 0.0,
        act: str = "relu",
        feed_forward: bool = True,
        head_layers: int = 1,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"'num_layers' must be at least 1 (got {num_layers})")
        if pool is not None and pool not in POOLS:
            raise ValueError(f"'pool' must be one of {', '.join(POOLS)} or None (got {pool!r})")
        for name, part in (("conv", conv), ("attn", attn)):
            if isinstance(part, (Module, type)) or (part is not None and not callable(part)):
                raise TypeError(
                    f"'{name}' must be a function of the layer's number that returns a module, "
                    f"such as lambda layer: GCNConv({channels}, {channels}) (got {part!r})"
                )
        self.pool = pool
        self.encoder = Linear(in_channels, channels)
        self.edge_encoder = Linear(edge_dim, channels) if edge_dim is not None else None
        self.input_dropout, self.dropout = torch.nn.Dropout(input_dropout), torch.nn.Dropout(dropout)
        self.layers: list[GPSLayer] = ModuleList(  # type: ignore[assignment]
            GPSLayer(
                channels,
                conv(number) if conv is not None else None,
                attn(number) if attn is not None else None,
                norm,
                dropout,
                act,
                feed_forward,
            )
            for number in range(num_layers)
        )
        tied: list[Any] = [layer.attn for layer in self.layers if hasattr(layer.attn, "tie")]
        for part in tied[1:]:
            part.tie(tied[0])
        self.head = MLPHead(channels, out_channels, head_layers, dropout, act)

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry, each once."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.requires))

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
            ValueError: If there are edge features without ``edge_dim``, or the other way round.
        """
        if (self.edge_encoder is None) != (edge_attr is None):
            raise ValueError(
                "the model has no 'edge_dim', but is given 'edge_attr'"
                if edge_attr is not None
                else f"the model has edge_dim={self.edge_encoder.in_features}, but is given no 'edge_attr'"  # type: ignore[union-attr]
            )
        if batch is None and graph is not None:
            batch = graph.get("batch")
        num_graphs = getattr(graph, "num_graphs", None) if batch is not None else 1
        if num_graphs is None:
            num_graphs = segments(batch).num_graphs
        x = self.dropout(self.encoder(self.input_dropout(x)))
        conv_kwargs: dict[str, Any] = {}
        if self.edge_encoder is not None:
            conv_kwargs["edge_attr"] = self.edge_encoder(edge_attr)
        initial_carry = getattr(self.layers[0].attn, "initial_carry", None)
        carry = None if initial_carry is None else initial_carry(num_graphs)
        for layer in self.layers:
            result = layer(x, edge_index, batch, graph, carry, **conv_kwargs)
            if carry is not None:
                result, carry = result
            if isinstance(result, tuple):
                x, conv_kwargs["edge_attr"] = result
            else:
                x = result
        if self.pool is not None:
            batch = x.new_zeros(x.size(0), dtype=torch.long) if batch is None else batch
            x = POOLS[self.pool](x, batch, num_graphs)
        return self.head(x)
