"""PyG's ``GPSConv`` with the attentions of this package."""

from collections.abc import Callable
from typing import Any

import torch_geometric.nn
from torch import Tensor
from torch.nn import Module, MultiheadAttention
from torch.nn.functional import dropout
from torch.nn.modules.module import register_module_module_registration_hook
from torch_geometric.data import Data
from torch_geometric.nn.attention import PerformerAttention

from pyg_topomask.checks import check_dtype
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.edge_probe import ending_explanations
from pyg_topomask.nn.graph_attributes import check_planned, graph_of, weight_of_edges, with_weight
from pyg_topomask.nn.named import as_attention
from pyg_topomask.nn.norm import accepts, apply_norm
from pyg_topomask.nn.reset import reset
from pyg_topomask.typing import Adj

_OWN = {"multihead": MultiheadAttention, "performer": PerformerAttention}
"""Attentions that stay PyG's own; its ``GPSConv.forward`` calls no others."""


class GPSConv(torch_geometric.nn.GPSConv):
    """:class:`torch_geometric.nn.GPSConv` with any attention of this package.

    Its arguments come in PyG's order and its parameters have PyG's names, so it takes the place of PyG's class in a
    model. :class:`GPSLayer` has more settings: several branches, ``pre_norm``, carries from layer to layer. Here, an
    attention with a carry starts afresh in each layer.

    Reference: Rampášek et al., *Recipe for a General, Powerful, Scalable Graph Transformer*, NeurIPS 2022,
    arXiv:2205.12454, Section 3.2.

    Args:
        channels: Width ``C``.
        conv: Convolution of PyG; no local branch if :obj:`None`.
        heads: Number of heads ``H``.
        dropout: Probability of zeroing an entry in both branches and the feed-forward part, in training.
        act, act_kwargs: Activation of the feed-forward part by PyG's names, and its further arguments.
        norm, norm_kwargs: Norm after each part by PyG's names, or :obj:`None`, and its further arguments.
        attn_type: A name in :data:`~pyg_topomask.nn.ATTENTION`, in upper or lower case, such as ``"grf"``; or an
            attention, as for :class:`GPSLayer`. ``"multihead"`` and ``"performer"`` are those of PyG;
            ``"Performer"`` is ours.
        attn_kwargs: Further arguments of the attention that ``attn_type`` names, which are copied.
        transform: What adds the attributes `requires` if the layer is called without ``graph``, such as
            ``AddRandomWalks()``. It runs in each call; stored attributes cost less.

    Raises:
        TypeError, ValueError: As the attention, or if there is none of that name.
    """

    def __init__(
        self,
        channels: int,
        conv: Module | None,
        heads: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        act_kwargs: dict[str, Any] | None = None,
        norm: str | None = "batch_norm",
        norm_kwargs: dict[str, Any] | None = None,
        attn_type: str | Module = "grf",
        attn_kwargs: dict[str, Any] | None = None,
        *,
        transform: Callable[[Data], Data] | None = None,
    ) -> None:
        own = attn_type if isinstance(attn_type, str) and attn_type in _OWN else None
        settings = (dropout, act, act_kwargs, norm, norm_kwargs, own or "multihead", attn_kwargs if own else None)
        super().__init__(channels, conv, heads, *settings)
        self.transform = transform
        for part in filter(None, (self.norm1, self.conv)):
            accepts(part, "batch")  # now, because torch.compile cannot read signatures
        if own is None:
            self.attn = as_attention(attn_type, channels, heads, attn_kwargs, name="attn_type")
            self.attn_type = attn_type if isinstance(attn_type, str) else type(attn_type).__name__

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry."""
        return getattr(self.attn, "requires", ())

    @ending_explanations
    def __call__(self, *inputs: Any, **more: Any) -> Tensor:
        """Call `forward`."""
        return super().__call__(*inputs, **more)

    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        for part in self.children():
            reset(part)

    def forward(
        self, x: Tensor, edge_index: Adj, batch: Tensor | None = None, graph: Data | None = None, **kwargs: Any
    ) -> Tensor:
        """Apply the layer, ``[N, C] → [N, C]``.

        Args:
            x: Nodes, shape ``[N, C]``.
            edge_index: Edges, shape ``[2, E]``, for the convolution.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with the attributes `requires`. If :obj:`None`, it is made of the other
                arguments, and ``transform`` is applied to it.
            **kwargs: Further arguments of the convolution, such as ``edge_attr``. ``edge_weight`` is that of ``graph``
                by default. Without ``graph``, masks read ``edge_weight`` and ``edge_type``, too.
        """
        check_dtype(self, x)
        check_planned(graph)
        if self.conv is not None and "edge_weight" not in kwargs:
            kwargs = with_weight(self.conv, kwargs, weight_of_edges(graph, edge_index, x.dtype), edge_index)
        if batch is None and graph is not None:
            batch = graph.get("batch")
        if isinstance(self.attn, tuple(_OWN.values())):
            return super().forward(x, edge_index, batch, **kwargs)
        if graph is None and (self.transform is not None or not self.requires):
            graph = graph_of(edge_index, x.size(0), batch, self.transform, kwargs)
        out = self._branch(self.attn(x, batch, graph), x, self.norm2, batch)
        if self.conv is not None:
            out = self._branch(self.conv(x, edge_index, **kwargs), x, self.norm1, batch) + out
        return apply_norm(self.norm3, out + self.mlp(out), batch)

    def _branch(self, update: Tensor, x: Tensor, norm: Module | None, batch: Tensor | None) -> Tensor:
        return apply_norm(norm, dropout(update, self.dropout, self.training) + x, batch)


def _refuse_in_pyg(module: Module, name: str, part: Module | None) -> None:
    """PyG's ``GPSConv.forward`` leaves out attentions of classes that it does not know, without a message."""
    if isinstance(part, Attention) and getattr(type(module), "forward", None) is _PYG_FORWARD:
        raise TypeError(
            f"PyG's GPSConv would leave out {type(part).__name__} without a message: use "
            "pyg_topomask.nn.GPSConv(channels, conv, attn_type=…) instead"
        )


_PYG_FORWARD = torch_geometric.nn.GPSConv.forward
register_module_module_registration_hook(_refuse_in_pyg)
