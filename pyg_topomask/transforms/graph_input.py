"""What transforms read of a graph, checked once where it enters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.csr import check_edges, edge_tensors, is_sparse_tensor

_RESERVED = ("batch", "node", "edge", "index", "adj", "face")


def check_name(name: str) -> None:
    """Refuse names of attributes that PyG's collation would read something into.

    Raises:
        ValueError: If so.
    """
    if any(word in name for word in _RESERVED) or not name.isidentifier():
        raise ValueError(f"'name' must be an identifier without a word that PyG's collation reads (got {name!r})")


def num_nodes_of(data: Any) -> int:
    """Number of nodes of a homogeneous graph.

    Raises:
        TypeError: If it is another kind of data.
        ValueError: If the graph does not say.
    """
    if not isinstance(data, Data):
        raise TypeError(
            f"the transform takes a homogeneous graph (got {type(data).__name__}); "
            "for HeteroData, call to_homogeneous() first"
        )
    if data.num_nodes is None:
        raise ValueError("the graph does not say how many nodes it has; set 'num_nodes' or node features 'x'")
    return int(data.num_nodes)


def edges_of(data: Data) -> tuple[Tensor, Tensor | None]:
    """Checked edges and weights of a graph, be they ``edge_index`` and ``edge_weight`` or a SparseTensor ``adj_t``.

    Raises:
        TypeError: If weights are not real numbers.
        ValueError: If there are no edges or they do not fit the number of nodes.
    """
    adj: Any = data.get("edge_index")
    if adj is None:
        adj = data.get("adj_t")
    if adj is None:
        raise ValueError("the graph has no edges; it needs 'edge_index' or 'adj_t'")
    edge_index, weight = edge_tensors(adj)
    if not is_sparse_tensor(adj):
        weight = data.get("edge_weight")
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.is_complex():
            got = getattr(weight, "dtype", type(weight).__name__)
            raise TypeError(f"'edge_weight' must be a tensor of real numbers (got {got})")
        weight = weight.detach().to(torch.float64).view(-1)
    check_edges(edge_index, num_nodes_of(data), weight)
    return edge_index, weight
