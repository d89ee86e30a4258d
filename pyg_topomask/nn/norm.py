"""Norms of nodes and edges that accept zero rows or one row."""

from __future__ import annotations

from torch import Tensor
from torch.nn import BatchNorm1d, Module
from torch.nn import LayerNorm as NodeLayerNorm
from torch.nn.functional import batch_norm
from torch_geometric.nn import GraphNorm, LayerNorm

from pyg_topomask.checks import check_choice

NORMS: dict[str, type[Module]] = {
    "batch_norm": BatchNorm1d,
    "layer_norm": LayerNorm,
    "node_layer_norm": NodeLayerNorm,
    "graph_norm": GraphNorm,
}


def build_norm(name: str | None, channels: int) -> Module | None:
    """The norm of that name for rows of width ``channels``; None if ``name`` is :obj:`None`.

    Raises:
        ValueError: If the name is unknown.
    """
    check_choice("norm", name, (*NORMS, None))
    return None if name is None else NORMS[name](channels)


def apply_norm(norm: Module | None, x: Tensor, batch: Tensor | None = None) -> Tensor:
    """Apply a norm to the rows ``x [N, C]`` of the graphs in ``batch``; return ``x`` if the norm is :obj:`None`."""
    if norm is None or x.size(0) == 0:
        return x
    if isinstance(norm, (LayerNorm, GraphNorm)):
        return norm(x, batch)
    if isinstance(norm, BatchNorm1d) and norm.training and x.size(0) == 1:
        # A single row has no variance: normalise it by the running statistics.
        return batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return norm(x)
