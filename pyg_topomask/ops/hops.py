"""Pairs of nodes within a distance, found once per graph."""

import torch
from torch import Tensor

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.op import Entry
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.sparse import Pattern

_hop_pairs = Entry(
    "hops", "hop_pairs", ("rowptr", "col", "length", "first", "start", "visited", "hops"), {"most": int, "width": float}
)

_NODES_PER_THREAD = 2**10  # that are worth a second thread


def hop_pairs(
    edge_index: Tensor, num_nodes: int, max_hops: int, length: Tensor | None = None, width: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Pairs of nodes within ``max_hops`` of each other, along the direction of edges, and their distance.

    Compiled code searches breadth first, or by Dijkstra's algorithm where edges have lengths. Cost: one search from
    every node, which ends at ``max_hops``.

    Args:
        edge_index: Checked edges, shape ``[2, E]``.
        num_nodes: ``N``.
        max_hops: Largest distance.
        length: Lengths of the edges, finite and at least 0, shape ``[E]``; 1 if :obj:`None`. The shortest of equal
            edges counts.
        width: Unit of the distances. A distance is rounded to the nearest multiple of it.

    Returns:
        Pairs ``[2, P]``, int64, sorted, each node with itself among them, and their distances ``[P]``, int64.
    """
    row, col = edge_index
    if length is None and width != 1:  # compiled code counts edges where they have no lengths
        length = torch.ones_like(row, dtype=torch.float64)
    pattern, entry = Pattern.merge(row, col, num_nodes, num_nodes)
    if length is not None:
        least = length.new_full((pattern.nnz,), torch.inf, dtype=torch.float64)
        length = least.scatter_reduce(0, entry, length.double(), "amin")
    if edge_index.device.type != "cpu" or loader.is_transformed() or loader.missing("hops") is not None:
        return hop_pairs_reference(pattern, max_hops, length, width)
    graph = pattern.rowptr.long(), pattern.col.long(), length
    threads = loader.num_threads(num_nodes, _NODES_PER_THREAD)
    first = graph[0].new_zeros(num_nodes + 1)
    _hop_pairs((*graph, first, None, None, None), max_hops, width, threads=threads)
    first = first.cumsum(0)
    start, visited, hops = first.new_empty(3, int(first[-1]), dtype=torch.int32)
    if hops.numel():
        _hop_pairs((*graph, first, start, visited, hops), max_hops, width, threads=threads)
    return torch.stack([start, visited]).long(), hops.long()


def hop_pairs_reference(
    graph: Pattern, max_hops: int, length: Tensor | None = None, width: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`hop_pairs` in plain torch, on any device: pairs are extended by an edge until no distance falls any more."""
    rowptr, nodes = graph.rowptr.long(), torch.arange(graph.num_rows, device=graph.col.device)
    length = torch.ones(graph.nnz, dtype=torch.float64, device=nodes.device) if length is None else length
    key, distance = nodes * (graph.num_rows + 1), torch.zeros_like(nodes, dtype=torch.float64)
    start, node, reached = nodes, nodes, distance
    while node.numel():
        owner, edge = ragged_ranges(rowptr[node], rowptr.diff()[node])
        further = reached[owner] + length[edge]
        near = (further / width).round() <= max_hops
        extended = (start[owner] * graph.num_rows + graph.col[edge])[near]
        all_keys, place = torch.unique(torch.cat([key, extended]), return_inverse=True)
        before = distance.new_full(all_keys.shape, torch.inf).index_copy(0, place[: key.numel()], distance)
        distance = before.scatter_reduce(0, place, torch.cat([distance, further[near]]), "amin")
        key, fallen = all_keys, distance < before
        start, node, reached = key[fallen] // graph.num_rows, key[fallen] % graph.num_rows, distance[fallen]
    return torch.stack([key // max(graph.num_rows, 1), key % max(graph.num_rows, 1)]), (distance / width).round().long()
