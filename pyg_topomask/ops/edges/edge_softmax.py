"""Softmax attention along edges of several types: graph edges, expander edges, edges to and from virtual nodes."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.attention.kernels import EdgeVectors, Kernel
from pyg_topomask.ops.attention.mask import PatternMask
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import Pattern


class TypedEdges(NamedTuple):
    """Edges of all types, sorted by receiver. Those of a graph are adjacent in memory."""

    pattern: Pattern
    """Rows are receivers, columns are senders."""
    kind: Tensor
    """Type of each edge, int32, shape ``[P]``."""
    number: Tensor
    """Number of each edge among those of all types, which begin with ``edge_index``, shape ``[P]``."""


@once_per_batch
def typed_edges(
    edge_index: Tensor,
    expander_index: Tensor | None,
    batch: Tensor | None,
    num_nodes: int,
    num_graphs: int,
    num_virtual: int,
) -> TypedEdges:
    """Join all edges of a batch, once for all layers.

    Args:
        edge_index: Edges ``j → i``, along which ``i`` attends to ``j``, shape ``[2, E]``.
        expander_index: Expander edges, shape ``[2, E']``; none if :obj:`None`.
        batch: Graph of each node, below ``num_graphs``, shape ``[N]``; one graph if :obj:`None`.
        num_nodes: ``N``.
        num_graphs: ``B``.
        num_virtual: Number ``V`` of virtual nodes per graph; virtual node ``v`` of graph ``g`` is node ``N + g V + v``.
            Virtual nodes and real nodes of the same graph attend to each other, but virtual nodes do not attend to
            virtual nodes.

    Raises:
        TypeError, ValueError: If an edge contains a node that does not exist.
    """
    edges = _joined(edge_index, expander_index, batch, num_nodes, num_virtual)
    sender, receiver = torch.cat(edges, dim=1)
    kind = torch.cat([torch.full_like(index[0], number) for number, index in enumerate(edges)])
    num_rows, order = num_nodes + num_graphs * num_virtual, None
    if num_virtual and batch is not None:  # virtual nodes follow their graph's nodes
        virtual = torch.arange(num_graphs, device=batch.device).repeat_interleave(num_virtual)
        order = torch.cat([batch.long(), virtual]).argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(num_rows, device=order.device))
        sender, receiver = place[sender], place[receiver]
    by_row = receiver.argsort(stable=True)
    pattern = Pattern(receiver[by_row], sender[by_row], num_rows, num_rows, order)
    return TypedEdges(pattern, kind[by_row].int(), by_row)


def _joined(
    edge_index: Tensor, expander_index: Tensor | None, batch: Tensor | None, num_nodes: int, num_virtual: int
) -> list[Tensor]:
    """Edges of each type, ``[2, E]``; arguments and errors are those of `typed_edges`."""
    parts = [("edge_index", edge_index)]
    if expander_index is not None:
        parts.append(("expander_index", expander_index))
    for name, index in parts:
        check_edges(index, num_nodes, None, name)
    edges = [index.long() for _, index in parts]
    if num_virtual:
        real = torch.arange(num_nodes, device=edge_index.device)
        graph = torch.zeros_like(real) if batch is None else batch.long()
        number = torch.arange(num_virtual, device=real.device)
        virtual = (num_nodes + num_virtual * graph[:, None] + number).flatten()
        real = real.repeat_interleave(num_virtual)
        edges += [torch.stack([real, virtual]), torch.stack([virtual, real])]
    return edges


def typed_edge_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: tuple[Tensor, Tensor | None, Tensor | None, int, int, int],
    kinds: Tensor,
    edge: Tensor | None = None,
    dropout: float = 0.0,
) -> Problem:
    r"""Softmax attention of receivers to their senders, with scores :math:`q_i \cdot (k_j \odot e_{ji}) / \sqrt{D}`.

    Cost of a solution per head: :math:`O(E D)` operations for ``E`` edges of all types.

    Args:
        q, k, v: Queries, keys and values of real nodes, then of virtual nodes, shape ``[N + B V, H, D]``; queries in
            float32 or float64.
        where: Arguments of `typed_edges`.
        kinds: Vectors :math:`e` of the types of edges: graph edges, expander edges if there are any, edges to and from
            virtual nodes if there are any; shape ``[T, H, D]``.
        edge: Vectors that are added to that of graph edges, shape ``[E, H, D]``; none if :obj:`None`.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        The problem, with outputs of shape ``[N + B V, H, D]``; they are zero for a receiver without edges.

    Raises:
        TypeError, ValueError: If an edge contains a node that does not exist.
    """
    edges = typed_edges(*where)
    vectors = EdgeVectors(kinds, edges.kind, kinds.size(0))
    if edge is not None:
        of_pair = _vector_of_pair(edges.number, edges.kind, edge.size(0), kinds.size(0))
        vectors = EdgeVectors(torch.cat([kinds, edge + kinds[0]]), of_pair, kinds.size(0))
    scaled = q * q.size(-1) ** -0.5
    return Problem(Kernel("softmax"), scaled, k, v, PatternMask(edges.pattern), edges=vectors, dropout=dropout)


@once_per_batch
def _vector_of_pair(number: Tensor, kind: Tensor, num_edges: int, num_kinds: int) -> Tensor:
    """The vector of each pair, int32: graph edges have their own, which follow those of the types."""
    return torch.where(number < num_edges, number + num_kinds, kind).int()


def edge_scores(q: Tensor, k: Tensor, edge: Tensor, edge_index: Tensor) -> Tensor:
    r"""Scores :math:`q_i \cdot (k_j \odot e_{ji}) / \sqrt{D}` of the edges ``j → i``.

    Args:
        q, k: Queries and keys, shape ``[N, H, D]``.
        edge: Vectors :math:`e` of the edges, shape ``[E, H, D]``, or ``[1, H, D]`` for the same vector on all edges.
        edge_index: Edges, shape ``[2, E]``.

    Returns:
        Shape ``[E, H]``.
    """
    source, target = edge_index.long()
    edge = edge * q.size(-1) ** -0.5
    return (q.index_select(0, target) * k.index_select(0, source) * edge).sum(-1)
