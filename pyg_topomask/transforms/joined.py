"""Disjoint union of many graphs, so that one call processes all of them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import edges_of, num_nodes_of

_NODES_TOGETHER = 2**16  # nodes of the graphs that are processed in one call


class JoinedTransform(GraphTransform):
    """Base of the transforms that process many graphs in one call."""

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        groups = together([num_nodes_of(graph) for graph in graphs], _NODES_TOGETHER)
        return [added for begin, end in groups for added in self.of_group(graphs[begin:end])]

    def of_group(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        """Attributes to add to each graph."""
        raise NotImplementedError


class JoinedEdges(NamedTuple):
    """Edges of several graphs."""

    edge_index: Tensor  # [2, E]
    edge_weight: Tensor | None  # [E], float64; one per edge if None
    ptr: Tensor  # [B + 1], first node of each graph and the number of nodes


def together(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive graphs with at most ``most`` nodes in total; a larger graph gets its own range."""
    begin, total = 0, 0
    for position, size in enumerate(sizes):
        if position > begin and total + size > most:
            yield begin, position
            begin, total = position, 0
        total += size
    if begin < len(sizes):
        yield begin, len(sizes)


def join_edges(graphs: Sequence[Data]) -> JoinedEdges:
    """Checked edges of several graphs, on the device of the first graph.

    Raises:
        TypeError: If edges or weights have a wrong type.
        ValueError: If a graph has no edge attribute, or its edges do not fit its nodes.
    """
    edges = [edges_of(graph) for graph in graphs]
    starts, device = [0, *accumulate(num_nodes_of(graph) for graph in graphs)], edges[0][0].device
    ptr = torch.tensor(starts, device=device)
    if len(edges) == 1:
        return JoinedEdges(*edges[0], ptr)
    edge_index = torch.cat([edge.to(device) + first for (edge, _), first in zip(edges, starts)], 1)
    if all(weight is None for _, weight in edges):
        return JoinedEdges(edge_index, None, ptr)
    weights = [torch.ones(edge.size(1), dtype=torch.float64) if weight is None else weight for edge, weight in edges]
    return JoinedEdges(edge_index, torch.cat([weight.to(device) for weight in weights]), ptr)


def split_table(joined: JoinedEdges, index: Tensor, *columns: Tensor) -> list[list[Tensor]]:
    """Each graph's part of a table of node pairs, with its own memory.

    Args:
        joined: The graphs.
        index: Pairs of nodes of the same graph, sorted by the first node, shape ``[2, nnz]``.
        columns: Values of the pairs, shape ``[nnz, *]``.

    Returns:
        For each graph its pairs, numbered within the graph, int32, followed by its part of each column.
    """
    ptr = joined.ptr
    if ptr.numel() == 2:
        return [[index.int()], *([column] for column in columns)]
    bounds = torch.searchsorted(index[0], ptr.to(index.dtype))
    sizes = bounds.diff()
    local = (index - torch.repeat_interleave(ptr[:-1], sizes)).int()
    split = sizes.tolist()
    pairs = [part.clone() for part in local.split(split, dim=1)]
    return [pairs, *([part.clone() for part in column.split(split)] for column in columns)]
