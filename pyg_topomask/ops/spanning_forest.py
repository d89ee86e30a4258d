"""Spanning forests of graphs, rooted and sorted by depth."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from torch import Tensor

from pyg_topomask.ops.sparse import Pattern


class Links(NamedTuple):
    """The pairs of different nodes that an edge connects in either direction, sorted; on the CPU."""

    low: Tensor  # [L], int64, the smaller node of each pair
    high: Tensor  # [L]
    length: Tensor  # [L], the shortest of the pair's edges


class SpanningForest(NamedTuple):
    """A spanning forest; on the CPU."""

    parent: Tensor  # [N], int64, −1 for a root
    order: Tensor  # [N], nodes sorted by depth
    length: Tensor  # [N], length of the edge to the parent, 0 for a root


def undirected_links(edge_index: Tensor, num_nodes: int, length: Tensor) -> Links:
    """The links of a checked edge list; self loops are left out.

    Args:
        edge_index: Edges, shape ``[2, E]``.
        num_nodes: ``N``.
        length: Length of each edge, shape ``[E]``.
    """
    edges, length = edge_index.cpu().long(), length.cpu()
    low, high = edges.amin(0), edges.amax(0)
    keep = low < high
    pattern, entry = Pattern.merge(low[keep], high[keep], num_nodes, num_nodes)
    shortest = length.new_zeros(pattern.nnz).scatter_reduce(0, entry, length[keep], "amin", include_self=False)
    return Links(pattern.row.long(), pattern.col.long(), shortest)


def spanning_forest(links: Links, num_nodes: int, rank: Tensor | None = None) -> SpanningForest:
    """A spanning tree of each connected component, whose root is the node with most neighbours, the first of equals.

    No tree depends on the other components.

    Args:
        links: The links.
        num_nodes: ``N``.
        rank: Different ranks of the links, ≥ 0, shape ``[L]``: the tree has the smallest sum of ranks. If :obj:`None`,
            the trees are those of a breadth-first search, which have the smallest depth with these roots.
    """
    low, high = links.low.numpy(), links.high.numpy()
    if num_nodes == 0:
        empty = torch.zeros(0, dtype=torch.int64)
        return SpanningForest(empty, empty, links.length)
    _, component = connected_components(_matrix(low, high, num_nodes), directed=False)
    degree = np.bincount(np.concatenate([low, high]), minlength=num_nodes)
    first = np.lexsort((np.arange(num_nodes), -degree, component))
    roots = first[np.unique(component[first], return_index=True)[1]]
    if rank is not None:
        kept = minimum_spanning_tree(_matrix(low, high, num_nodes, rank.double().numpy() + 1)).tocoo()
        low, high = kept.row, kept.col
    # One search from an additional node, whose neighbours are the roots.
    row = np.concatenate([low, high, np.full(roots.size, num_nodes)])
    col = np.concatenate([high, low, roots])
    order, parent = breadth_first_order(_matrix(row, col, num_nodes + 1), num_nodes, return_predecessors=True)
    parent = torch.from_numpy(np.where(parent == num_nodes, -1, parent)[:num_nodes].astype(np.int64))
    node, above = torch.arange(num_nodes), parent.clamp(min=0)
    key = torch.minimum(node, above) * num_nodes + torch.maximum(node, above)
    link = torch.searchsorted(links.low * num_nodes + links.high, key).clamp(max=max(links.low.numel() - 1, 0))
    length = links.length[link] if links.low.numel() else links.length.new_zeros(num_nodes)
    length = torch.where(parent < 0, 0, length)
    return SpanningForest(parent, torch.from_numpy(order[1:].astype(np.int64)), length)


def _matrix(row: np.ndarray, col: np.ndarray, size: int, value: np.ndarray | None = None) -> csr_matrix:
    value = np.ones(row.size) if value is None else value
    return csr_matrix((value, (row, col)), (size, size))
