"""Attributes of graphs, read and checked in one place where they enter the library, and moved row by row."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.csr import check_edges, edge_tensors, is_sparse, stored_edges

_RESERVED = ("batch", "node", "edge", "index", "adj", "face")


def check_name(name: str) -> None:
    """Refuse attribute names that PyG's collation treats specially.

    Raises:
        ValueError: If the name is not allowed.
    """
    if any(word in name for word in _RESERVED) or not name.isidentifier():
        raise ValueError(f"'name' must be an identifier without a word that PyG's collation reads (got {name!r})")


def num_nodes_of(data: Any) -> int:
    """Number of nodes of a homogeneous graph.

    Raises:
        TypeError: If it is another kind of data.
        ValueError: If the number of nodes is unknown.
    """
    if not isinstance(data, Data):
        raise TypeError(
            f"the transform takes a homogeneous graph (got {type(data).__name__}); "
            "for HeteroData, call to_homogeneous() first"
        )
    if data.num_nodes is None:
        raise ValueError("the graph does not say how many nodes it has; set 'num_nodes' or node features 'x'")
    return int(data.num_nodes)


def check_one_graph(data: Data, transform: str) -> None:
    """Refuse a batch, because ``transform`` would treat its graphs as one.

    Raises:
        ValueError: If the graph is such a batch.
    """
    batch = data.get("batch")
    if batch is not None and batch.numel() > 0 and int(batch.max()) > 0:
        raise ValueError(f"{transform} would read a batch as one graph: apply it to each graph, before batching")


def edges_of(data: Data) -> tuple[Tensor, Tensor | None]:
    """Checked edges and weights of a graph, from ``edge_index`` and ``edge_weight`` or from a sparse ``adj_t``.

    Raises:
        TypeError: If weights are not real numbers.
        ValueError: If the graph has no edge attribute, or the edges do not fit the number of nodes.
    """
    adj = stored_edges(data)
    if adj is None:
        raise ValueError("the graph has no edges; it needs 'edge_index' or 'adj_t'")
    edge_index, weight = edge_tensors(adj)
    if not is_sparse(adj):
        weight = data.get("edge_weight")
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.is_complex():
            got = getattr(weight, "dtype", type(weight).__name__)
            raise TypeError(f"'edge_weight' must be a tensor of real numbers (got {got})")
        weight = weight.detach().to(torch.float64).view(-1)
    check_edges(edge_index, num_nodes_of(data), weight)
    return edge_index, weight


def with_edge_index(data: Data) -> Data:
    """A graph with a plain ``edge_index``, and no ``adj_t``, whose values become ``edge_weight``."""
    adj = stored_edges(data)
    if adj is None or (type(adj) is Tensor and "adj_t" not in data):
        return data
    num_nodes, data, (edge_index, weight) = data.num_nodes, copy.copy(data), edge_tensors(adj)
    data.edge_index, data.adj_t, data.num_nodes = edge_index, None, num_nodes
    if weight is not None:
        data.edge_weight = weight
    return data


def is_table(name: str, value: Any) -> bool:
    """Whether an attribute has two nodes in each column, as edges, walks and trees have."""
    return "index" in name and isinstance(value, Tensor) and value.dim() == 2


def select_rows(value: Any, rows: Tensor) -> Any:
    """Some rows of an attribute: a tensor, an array or a list, such as the names of nodes."""
    return value[rows] if hasattr(value, "shape") else [value[row] for row in rows.tolist()]


def edge_lengths(data: Data, name: str | None, num_edges: int) -> Tensor:
    """Lengths ``[E]`` of the edges, from the edge attribute ``name``; all are 1 if it is :obj:`None`.

    Raises:
        ValueError: If the attribute is missing or has another shape, or a length is negative or not finite.
    """
    if name is None:
        return torch.ones(num_edges)
    length = data.get(name)
    if not isinstance(length, Tensor) or length.numel() != num_edges:
        got = list(length.shape) if isinstance(length, Tensor) else type(length).__name__
        raise ValueError(f"the edge attribute {name!r} must have one length per edge, [{num_edges}] ({got=})")
    length = length.detach().to(torch.get_default_dtype()).view(-1)
    valid = (length >= 0) & length.isfinite()
    if not bool(valid.all()):
        raise ValueError(f"the lengths in {name!r} must be finite and at least 0 (got {float(length[~valid][0])})")
    return length
