"""Attentions and convolutions of PyG and torch as attentions of this package."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, MultiheadAttention
from torch_geometric.data import Data
from torch_geometric.nn import attention as dense

from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import keys_of
from pyg_topomask.nn.graph_attributes import read_edge_attr, with_weight
from pyg_topomask.nn.mask.structure import read_weighted_edges
from pyg_topomask.ops.segment import segment_sum

DENSE = (MultiheadAttention, *(getattr(dense, name) for name in dense.__all__))
"""Classes that take dense nodes ``[B, N, C]``."""


class DenseAttention(Attention):
    """An attention of PyG or torch that takes dense nodes, called as ``attn(x [N, C], batch, graph)``.

    Graphs of the same size are computed together, so that nothing is padded. (PyG's attentions count padding as nodes,
    even if they are given a mask.)

    Args:
        channels: Width ``C`` of input and output.
        module: An attention of :mod:`torch_geometric.nn.attention`, or a :class:`torch.nn.MultiheadAttention`.

    Raises:
        ValueError: If the attention has another width.
    """

    config_keys = keys_of("heads", "dropout")

    def __init__(self, channels: int, module: Module) -> None:
        super().__init__(channels)
        self.module = module
        weight = next(module.parameters())
        if not weight.is_meta:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self._check_width(weight.new_zeros(1, 1, self.channels))

    def _check_width(self, x: Tensor) -> None:
        name = type(self.module).__name__
        try:
            width = self._attend(x).size(2)
        except (RuntimeError, AssertionError):  # the product with a weight of another width
            raise ValueError(f"{name} does not take {self.channels} channels, the width of the layer") from None
        if width != self.channels:
            raise ValueError(f"{name} returns {width} channels, but the layer has {self.channels}")

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        if x.size(0) == 0:
            return x
        if batch is None:
            return self._attend(x[None])[0]
        size = segment_sum(torch.ones_like(batch), batch).index_select(0, batch)  # that of each node's graph
        order = size.argsort(stable=True)
        sizes, counts = size[order].unique_consecutive(return_counts=True)
        parts = zip(x.index_select(0, order).split(counts.tolist()), sizes.tolist())
        rows = torch.cat([self._attend(part.unflatten(0, (-1, nodes))).flatten(0, 1) for part, nodes in parts])
        return torch.empty_like(rows).index_copy(0, order, rows)

    def _attend(self, x: Tensor) -> Tensor:  # [B, N, C] -> [B, N, C]
        if not isinstance(self.module, MultiheadAttention):
            return self.module(x)
        x = x if self.module.batch_first else x.transpose(0, 1)
        out: Tensor = self.module(x, x, x, need_weights=False)[0]
        return out if self.module.batch_first else out.transpose(0, 1)


class ConvAttention(Attention):
    """A convolution of PyG, such as ``TransformerConv``, as an attention along the edges of the graph.

    Args:
        channels: Width ``C`` of input and output.
        module: The convolution. It gets ``graph.edge_weight``, and with ``edge_dim`` ``graph.edge_attr``.
    """

    accepts_tokens = False

    def __init__(self, channels: int, module: Module) -> None:
        super().__init__(channels)
        self.module = module
        self.edge_dim = getattr(module, "edge_dim", None)

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        check_input(x, self.channels, batch, graph)
        edge_index, weight = read_weighted_edges(self, graph)
        given = with_weight(self.module, {}, None if weight is None else weight.to(x.dtype), edge_index)
        if self.edge_dim is not None:
            given["edge_attr"] = read_edge_attr(graph, self.edge_dim, edge_index.size(1), x.dtype)
        return self.module(x, edge_index, **given)


class PyGMultihead(DenseAttention):
    """Torch's ``MultiheadAttention``."""

    def __init__(self, channels: int, heads: int = 1, **settings: Any) -> None:
        super().__init__(channels, MultiheadAttention(channels, heads, batch_first=True, **settings))


class PyGPerformer(DenseAttention):
    """PyG's ``PerformerAttention``, with 64 channels per head at any width."""

    def __init__(self, channels: int, heads: int = 1, **settings: Any) -> None:
        with torch.device("cpu"):  # it cannot draw its projection on the meta device
            module = dense.PerformerAttention(channels, heads, **settings)
        super().__init__(channels, module.to(torch.get_default_device()))


class PyGPolynormer(DenseAttention):
    """PyG's ``PolynormerAttention``."""

    def __init__(self, channels: int, heads: int = 1, **settings: Any) -> None:
        super().__init__(channels, dense.PolynormerAttention(channels, heads, channels // heads, **settings))


class PyGQFormer(DenseAttention):
    """PyG's ``QFormer`` of one layer with twice as many hidden channels."""

    def __init__(self, channels: int, heads: int = 1, num_layers: int = 1, **settings: Any) -> None:
        super().__init__(channels, dense.QFormer(channels, 2 * channels, channels, heads, num_layers, **settings))


class PyGSGFormer(DenseAttention):
    """PyG's ``SGFormerAttention``, whose heads are as wide as the input and averaged; for float32."""

    config_keys = keys_of("heads")

    def __init__(self, channels: int, heads: int = 1, **settings: Any) -> None:
        super().__init__(channels, dense.SGFormerAttention(channels, heads, channels, **settings))


PYG_ATTENTION: dict[str, type[Attention]] = {
    "pyg.Multihead": PyGMultihead,
    "pyg.Performer": PyGPerformer,
    "pyg.Polynormer": PyGPolynormer,
    "pyg.QFormer": PyGQFormer,
    "pyg.SGFormer": PyGSGFormer,
}
"""Attentions of PyG and torch by their names in configs."""
