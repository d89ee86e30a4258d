"""Parts of a graph with few edges between them: by METIS, or in a stream that needs only one number for each node."""

import torch
from torch import Tensor
from torch_geometric.utils.sparse import ptr2index

from pyg_topomask.checks import check_integer
from pyg_topomask.data.disk import node_blocks, pointers
from pyg_topomask.data.source import Graph, GraphSource

METHODS = ("auto", "metis", "stream")
_LARGEST_BLOCK = 4096  # nodes that are placed together, so that most work is done in torch; fewer on small graphs
_LARGEST_FOR_METIS = 20_000_000  # edges; METIS holds several copies of them


def partition(source: GraphSource | Graph, num_parts: int, method: str = "auto", passes: int = 10) -> Tensor:
    """The part of each node, ``[N]``, int64.

    Args:
        source: The graph. METIS gets each edge in both directions, also where the graph has only one.
        num_parts: Number of parts.
        method: ``"metis"`` needs the package pymetis and memory for several copies of the edges. ``"stream"`` reads the
            rows in order, some at a time. ``"auto"`` is METIS where it is installed, up to 20 million edges.
        passes: How often ``"stream"`` reads the graph; later passes improve the parts of earlier ones.

    Raises:
        ImportError: If ``method`` is ``"metis"``, and pymetis is not installed.
        TypeError: If a number is not an integer, or ``source`` is no graph.
        ValueError: If ``num_parts`` is not between 1 and the number of nodes, ``passes`` is less than 1, the method
            does not exist, or the rows name a node that does not.
    """
    source = source if isinstance(source, GraphSource) else GraphSource(source)
    num_parts, passes = check_integer("num_parts", num_parts, 1), check_integer("passes", passes, 1)
    if num_parts > source.num_nodes or method not in METHODS:
        raise ValueError(
            f"'num_parts' must be at most {source.num_nodes} (got {num_parts}), and 'method' one of {METHODS} "
            f"(got {method!r})"
        )
    source.check_rows()
    if method != "stream":
        try:
            import pymetis
        except ImportError:
            if method == "metis":
                raise ImportError("method='metis' needs the package pymetis; install it, or use 'stream'") from None
        else:
            if method == "metis" or source.index.numel() <= _LARGEST_FOR_METIS:
                rows = pymetis.CSRAdjacency(*(array.numpy() for array in _both_ways(source)))
                return torch.tensor(pymetis.part_graph(num_parts, rows)[1])
    return _streamed(source, num_parts, passes)


def _both_ways(source: GraphSource) -> tuple[Tensor, Tensor]:
    """Rows with each edge as often as its reverse: METIS writes outside its arrays where one is missing."""
    row, col = ptr2index(source.indptr), source.index.long()
    there, back = (row * source.num_nodes + col).sort().values, (col * source.num_nodes + row).sort().values
    if torch.equal(there, back):
        return source.indptr, source.index
    edges = torch.cat([there, back]).unique()
    return pointers(edges // source.num_nodes, source.num_nodes), edges % source.num_nodes


def _streamed(source: GraphSource, num_parts: int, passes: int) -> Tensor:
    """Linear deterministic greedy partition: a node joins the part of most neighbours, less the more it is full.

    Reference: Stanton and Kliot, *Streaming Graph Partitioning for Large Distributed Graphs*, KDD 2012; several passes
    as in Nishimura and Ugander, KDD 2013. Nodes that are read together do not see each other's new parts.
    """
    capacity = 1.05 * source.num_nodes / num_parts
    together = max(1, min(_LARGEST_BLOCK, source.num_nodes // (8 * num_parts)))
    part = torch.full((source.num_nodes,), -1)
    size = torch.zeros(num_parts)
    for _ in range(passes):
        for nodes in node_blocks(source.num_nodes, together):
            old = part[nodes]
            size -= torch.bincount(old[old >= 0], minlength=num_parts)
            row, place = source.edges_from(nodes)
            seen = part[source.index[place].long()]
            best = _best_parts((row * num_parts + seen)[seen >= 0], nodes.numel(), (1 - size / capacity).clamp(min=0))
            part[nodes] = _within_capacity(best, size, capacity)
            size += torch.bincount(part[nodes], minlength=num_parts)
    return part


def _best_parts(seen: Tensor, num_nodes: int, room: Tensor) -> Tensor:
    """The part of each node with the largest ``(neighbours + 0.001) · room``: one of a neighbour, or the emptiest.

    Args:
        seen: ``node · P + part`` for each neighbour.
        num_nodes: Number of nodes.
        room: The share of each part that is free, ``[P]``.
    """
    key, count = seen.unique(return_counts=True)
    node, part, emptiest = key // room.numel(), key % room.numel(), room.argmax()
    score = (count + 1e-3) * room[part]
    top = (1e-3 * room[emptiest]).repeat(num_nodes).scatter_reduce_(0, node, score, "amax")
    won = score == top[node]
    return emptiest.repeat(num_nodes).scatter_reduce_(0, node[won], part[won], "amin", include_self=False)


def _within_capacity(best: Tensor, size: Tensor, capacity: float) -> Tensor:
    """The best part of each node; where too many want a part, the last ones go where most room is left."""
    order = best.argsort(stable=True)
    first = torch.searchsorted(best[order], best[order])
    rank = torch.empty_like(best).scatter_(0, order, torch.arange(best.numel()) - first)
    late = rank >= (capacity - size)[best].clamp(min=0)
    room = (capacity - size - torch.bincount(best[~late], minlength=size.numel())).clamp(min=0).ceil().long()
    emptiest = room.argsort(descending=True, stable=True)
    best[late] = emptiest.repeat_interleave(room[emptiest])[: int(late.sum())]
    return best
