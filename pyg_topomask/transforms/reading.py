"""What transforms read of a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.graph import check_edges, edge_tensors, is_sparse_tensor


def check_homogeneous(data: Any, transform: str, purpose: str) -> int:
    """Number of nodes of a ``Data``.

    Raises:
        TypeError: If it is a ``HeteroData`` or no graph.
        ValueError: If it does not know its number of nodes.
    """
    if not isinstance(data, Data):
        raise TypeError(
            f"{transform} {purpose} a homogeneous graph (got {type(data).__name__}); "
            "for HeteroData, call to_homogeneous() first"
        )
    if data.num_nodes is None:
        raise ValueError("the graph does not say how many nodes it has; set 'num_nodes' or node features 'x'")
    return int(data.num_nodes)


def read_edges(data: Data, num_nodes: int) -> tuple[Tensor, Tensor | None] | None:
    """Checked edges and weights of a ``Data``, be they ``edge_index`` and ``edge_weight`` or a SparseTensor ``adj_t``.

    Returns:
        ``(edge_index [2, E], edge_weight [E] or None)``; :obj:`None` for a graph with neither.

    Raises:
        TypeError, ValueError: If edges or weights describe no graph of ``num_nodes`` nodes.
    """
    adj: Any = data.get("edge_index")
    if adj is None:
        adj = data.get("adj_t")
    if adj is None:
        return None
    edge_index, weight = edge_tensors(adj)
    if not is_sparse_tensor(adj):
        weight = data.get("edge_weight")
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.is_complex():
            got = getattr(weight, "dtype", type(weight).__name__)
            raise TypeError(f"'edge_weight' must be a tensor of real numbers (got {got})")
        weight = weight.detach().to(torch.get_default_dtype())
    check_edges(edge_index, num_nodes, weight)
    return edge_index, weight
