"""Many graphs as one whose nodes are numbered through, so that one call serves them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.transforms.graph_input import edges_of, num_nodes_of


class JoinedEdges(NamedTuple):
    """Edges of several graphs."""

    edge_index: Tensor  # [2, E]
    edge_weight: Tensor | None  # [E], float64; one per edge if None
    ptr: Tensor  # [B + 1], first node of each graph and the number of nodes


def together(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of neighbouring graphs of at most ``most`` nodes together; a larger graph stays alone."""
    begin, total = 0, 0
    for place, size in enumerate(sizes):
        if place > begin and total + size > most:
            yield begin, place
            begin, total = place, 0
        total += size
    if begin < len(sizes):
        yield begin, len(sizes)


def join_edges(graphs: Sequence[Data]) -> JoinedEdges:
    """Checked edges of graphs, on the device of the first.

    Raises:
        TypeError: If edges or weights are of another type.
        ValueError: If a graph has no edges or they do not fit its nodes.
    """
    edges = [edges_of(graph) for graph in graphs]
    ptr = [0, *accumulate(num_nodes_of(graph) for graph in graphs)]
    device = edges[0][0].device
    if len(edges) == 1:
        (edge_index, weight), *_ = edges
        return JoinedEdges(edge_index, weight, torch.tensor(ptr, device=device))
    joined = [edge.to(device) + first for (edge, _), first in zip(edges, ptr)]
    weights = None
    if any(weight is not None for _, weight in edges):
        weights = torch.cat(
            [torch.ones(edge.size(1), dtype=torch.float64) if weight is None else weight for edge, weight in edges]
        )
    return JoinedEdges(torch.cat(joined, 1), weights, torch.tensor(ptr, device=device))


def split_table(joined: JoinedEdges, index: Tensor, *columns: Tensor) -> list[list[Tensor]]:
    """Each graph's share of a table of pairs of nodes, with memory of its own.

    Args:
        joined: The graphs.
        index: Pairs of nodes of one graph each, sorted by the first, shape ``[2, nnz]``.
        columns: Numbers that belong to them, ``[nnz, *]``.

    Returns:
        The pairs in the numbers of each graph, int32, and each column's shares.
    """
    ptr = joined.ptr
    if ptr.numel() == 2:
        return [[index.int()], *([column] for column in columns)]
    bounds = torch.searchsorted(index[0], ptr)
    sizes = bounds.diff()
    local = (index - torch.repeat_interleave(ptr[:-1], sizes)).int()
    split = sizes.tolist()
    pairs = [part.clone() for part in local.split(split, dim=1)]
    return [pairs, *([part.clone() for part in column.split(split)] for column in columns)]
