"""The GraphGPS layer: message passing and attention, side by side."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Dropout, Linear, Module, Sequential
from torch_geometric.data import Data
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.nn.norm import apply_norm, build_norm
from pyg_topomask.typing import Adj


class GPSLayer(Module):
    r"""One GraphGPS layer, with any PyG convolution and any attention of this package.

    .. math::
        X_M &= \mathrm{Norm}(\mathrm{Dropout}(\mathrm{MPNN}(X, E, A)) + X) \\
        X_A &= \mathrm{Norm}(\mathrm{Dropout}(\mathrm{Attn}(X)) + X) \\
        X_{out} &= \mathrm{Norm}(X' + \mathrm{MLP}(X')), \qquad X' = X_M + X_A

    Reference: Rampášek et al., *Recipe for a General, Powerful, Scalable Graph Transformer*, NeurIPS 2022,
    arXiv:2205.12454, Section 3.2.

    Args:
        channels: Width ``C``.
        conv: Message passing, called as ``conv(x, edge_index, **conv_kwargs)``; it returns ``x`` or, where it updates
            edges, ``(x, edge_attr)``. One whose attribute ``has_residual`` is true drops out and adds ``x`` itself, as
            `GatedGCN` does, and gets the norm only. No local branch if :obj:`None`.
        attn: Attention, called as ``attn(x, batch, graph)``. No global branch if :obj:`None`.
        norm: ``"batch_norm"``, ``"layer_norm"`` (over the nodes and channels of each graph, as in GraphGPS) or
            :obj:`None`.
        dropout: Probability of zeroing in both branches and the feed-forward part, in training.
        act: Activation of the feed-forward part, by PyG's names.
        feed_forward: Whether the two-layer MLP, of width ``2 C``, follows. Without it the layer returns :math:`X'`.

    Raises:
        TypeError: If a branch is not a module.
        ValueError: If both branches are missing or a name is unknown.
    """

    def __init__(
        self,
        channels: int,
        conv: Module | None = None,
        attn: Module | None = None,
        norm: str | None = "batch_norm",
        dropout: float = 0.0,
        act: str = "relu",
        feed_forward: bool = True,
    ) -> None:
        super().__init__()
        if conv is None and attn is None:
            raise ValueError("a GPSLayer needs 'conv' or 'attn' (both are None)")
        for name, part in (("conv", conv), ("attn", attn)):
            if part is not None and not isinstance(part, Module):
                raise TypeError(f"'{name}' must be a module (got {part!r})")
        self.channels, self.conv, self.attn = channels, conv, attn
        self.norm_conv = build_norm(norm, channels) if conv is not None else None
        self.norm_attn = build_norm(norm, channels) if attn is not None else None
        self.dropout = Dropout(dropout)
        self.mlp = self.norm_out = None
        if feed_forward:
            self.mlp = Sequential(
                Linear(channels, 2 * channels),
                activation_resolver(act),
                Dropout(dropout),
                Linear(2 * channels, channels),
                Dropout(dropout),
            )
            self.norm_out = build_norm(norm, channels)

    @property
    def requires(self) -> tuple[str, ...]:
        """Attributes that the graph must carry."""
        return getattr(self.attn, "requires", ())

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        batch: Tensor | None = None,
        graph: Data | None = None,
        carry: Any = None,
        **conv_kwargs: Any,
    ) -> Any:
        """Apply the layer.

        Args:
            x: Nodes, shape ``[N, C]``.
            edge_index: Edges, shape ``[2, E]``, or a ``torch_sparse.SparseTensor``; only the convolution reads it.
            batch: Graph of each node, sorted, shape ``[N]``; ``graph.batch`` or one graph if :obj:`None`.
            graph: The ``Data`` or ``Batch`` with what the attention's mask needs.
            carry: What the attention of the layer before handed on, for attentions that carry something.
            **conv_kwargs: For the convolution, such as ``edge_attr``.

        Returns:
            ``x``; ``(x, edge_attr)`` where the convolution updates edges; ``(that, carry)`` with a carry.
        """
        if batch is None and graph is not None:
            batch = graph.get("batch")
        branches: list[Tensor] = []
        edges: list[Tensor] = []
        if self.conv is not None:
            local = self.conv(x, edge_index, **conv_kwargs)
            if isinstance(local, tuple):
                local, *edges = local
            if not getattr(self.conv, "has_residual", False):
                local = self.dropout(local) + x
            branches.append(apply_norm(self.norm_conv, local, batch))
        if self.attn is not None:
            if carry is None:
                update = self.attn(x, batch, graph)
            else:
                update, carry = self.attn(x, batch, graph, carry=carry)
            branches.append(apply_norm(self.norm_attn, self.dropout(update) + x, batch))
        out = sum(branches[1:], branches[0])
        if self.mlp is not None:
            out = apply_norm(self.norm_out, out + self.mlp(out), batch)
        result = (out, *edges) if edges else out
        return result if carry is None else (result, carry)
