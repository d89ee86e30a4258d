"""Softmax attention along edges of several types: graph edges, expander edges, edges to and from virtual nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.attention import fused_pairs
from pyg_topomask.ops.attention.pair_kernels import EdgeVectors, PairKernel
from pyg_topomask.ops.attention.partial_softmax import PartialSoftmax, softmax_over_entries
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import Pattern, sampled_product


class TypedEdges(NamedTuple):
    """Edges of all types, sorted by receiver; virtual nodes are numbered after the ``N`` real nodes.

    Keys are multiplied by a vector that depends on the type of the edge. The key table therefore has one row per sender
    and type, so that a few sparse products are enough for all types.
    """

    keys: Pattern
    """Columns are rows of the key table: ``N`` rows for each type whose senders are real nodes (graph edges, expander
    edges, edges to virtual nodes), then ``B V`` rows for the virtual nodes."""
    values: Pattern
    """The same edges; columns are the ``N + B V`` nodes."""
    graph_edge: Tensor
    """Entry of each edge of ``edge_index``, shape ``[E]``."""


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
    # Real senders have one block of N keys per type. Virtual senders, whose numbers start at N, come last.
    first_key = [position * num_nodes for position in range(len(edges))]
    if num_virtual:
        first_key[-1] -= num_nodes
    column = torch.cat([index[0] + first for index, first in zip(edges, first_key)])
    num_virtual *= num_graphs
    num_columns = (len(edges) - (num_virtual > 0)) * num_nodes + num_virtual
    order = (receiver * num_columns + column).argsort()
    entry = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    num_rows = num_nodes + num_virtual
    keys = Pattern(receiver[order], column[order], num_rows, num_columns)
    values = Pattern(receiver[order], sender[order], num_rows, num_rows)
    return TypedEdges(keys, values, entry[: edge_index.size(1)].clone())


class EdgePairs(NamedTuple):
    """The edges of `TypedEdges` for the compiled function. Those of a graph are adjacent in memory."""

    pattern: Pattern
    """Rows are receivers, columns are senders."""
    kind: Tensor
    """Type of each edge, int32, shape ``[P]``."""
    vector: Tensor
    """``kind``, but the number of types plus the edge's number for an edge of ``edge_index``, int32, shape ``[P]``."""


@once_per_batch
def edge_pairs(
    edge_index: Tensor,
    expander_index: Tensor | None,
    batch: Tensor | None,
    num_nodes: int,
    num_graphs: int,
    num_virtual: int,
) -> EdgePairs:
    """Join all edges of a batch; arguments and errors are those of `typed_edges`."""
    edges = _joined(edge_index, expander_index, batch, num_nodes, num_virtual)
    sender, receiver = torch.cat(edges, dim=1)
    kind = torch.repeat_interleave(torch.tensor([index.size(1) for index in edges], device=sender.device))
    num_rows, order = num_nodes + num_graphs * num_virtual, None
    if num_virtual and batch is not None:  # virtual nodes follow their graph's nodes
        virtual = torch.arange(num_graphs, device=batch.device).repeat_interleave(num_virtual)
        order = torch.cat([batch.long(), virtual]).argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(num_rows, device=order.device))
        sender, receiver = place[sender], place[receiver]
    by_row = receiver.argsort(stable=True)
    pattern = Pattern(receiver[by_row], sender[by_row], num_rows, num_rows, order)
    kind = kind[by_row]
    vector = torch.where(by_row < edge_index.size(1), by_row + len(edges), kind)
    return EdgePairs(pattern, kind.int(), vector.int())


def _joined(
    edge_index: Tensor,
    expander_index: Tensor | None,
    batch: Tensor | None,
    num_nodes: int,
    num_virtual: int,
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


def typed_edge_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: tuple[Tensor, Tensor | None, Tensor | None, int, int, int],
    kinds: Tensor,
    edge: Tensor | None = None,
    dropout: float = 0.0,
    origin: Tensor | None = None,
) -> Tensor:
    r"""Softmax attention of each receiver to its senders, with scores :math:`q_i \cdot (k_j \odot e_{ji}) / \sqrt{D}`.

    Cost per head: :math:`O(E D)` operations for ``E`` edges of all types, in one compiled function or with
    `edge_softmax_attention`.

    Args:
        q, k, v: Queries, keys and values of real nodes, then of virtual nodes, shape ``[N + B V, H, D]``, float32 or
            float64.
        where: Arguments of `typed_edges`.
        kinds: Vectors :math:`e` of the types of edges: graph edges, expander edges if there are any, edges to and from
            virtual nodes if there are any; shape ``[T, H, D]``.
        edge: Vectors that are added to that of graph edges, shape ``[E, H, D]``; none if :obj:`None`.
        dropout, origin: As in `edge_softmax_attention`.

    Returns:
        Shape ``[N + B V, H, D]``; zero for a receiver without edges.

    Raises:
        TypeError, ValueError: If an edge contains a node that does not exist.
    """
    if fused_pairs.refuses(q, v, edges=True) is not None:
        score = None if edge is None else edge_scores(q, k, edge, where[0])
        return edge_softmax_attention(q, typed_keys(k, kinds, where[3]), v, typed_edges(*where), score, dropout, origin)
    pairs = edge_pairs(*where)
    vectors = EdgeVectors(kinds, pairs.kind, kinds.size(0))
    if edge is not None:
        vectors = EdgeVectors(torch.cat([kinds, edge + kinds[0]]), pairs.vector, kinds.size(0))
    kernel, ones = PairKernel("softmax", False, dropout=dropout), v.new_ones(pairs.pattern.nnz)
    sums = fused_pairs.fused_sums(kernel, pairs.pattern, ones, ones, q * q.size(-1) ** -0.5, k, v, vectors)
    sums, total = sums.split([v.size(-1), 1], dim=-1)
    return PartialSoftmax(sums, total, total).divide(origin)


def typed_keys(k: Tensor, kinds: Tensor, num_nodes: int) -> Tensor:
    """The key table of :class:`TypedEdges`.

    Args:
        k: Keys of ``num_nodes`` real nodes, then of virtual nodes, shape ``[N + B V, H, D]``.
        kinds: Vectors of the types of edges, shape ``[T, H, D]``; with virtual nodes, the last one is for edges from
            them.
        num_nodes: ``N``.
    """
    if k.size(0) == num_nodes:
        return (kinds[:, None] * k).flatten(0, 1)
    real = (kinds[:-1, None] * k[:num_nodes]).flatten(0, 1)
    return torch.cat([real, kinds[-1] * k[num_nodes:]])


def edge_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: TypedEdges,
    edge_score: Tensor | None = None,
    dropout: float = 0.0,
    origin: Tensor | None = None,
) -> Tensor:
    r"""Softmax attention of each receiver to its senders, with scores :math:`q_i \cdot k_j / \sqrt{D}`.

    Cost per head: :math:`O(E D)` operations for ``E`` edges of all types, :math:`O(E)` memory beyond the arguments.

    Args:
        q: Queries, shape ``[N + B V, H, D]``, float32 or float64.
        k: The key table of :class:`TypedEdges`, shape ``[columns, H, D]``.
        v: Values, shape ``[N + B V, H, D]``.
        edges: The edges.
        edge_score: Term that is added to the scores of graph edges, shape ``[E, H]``; none if :obj:`None`.
        dropout: Probability of zeroing a normalised weight.
        origin: Origin that was subtracted from the values (`from_origin`) and is added to the result, same shape.

    Returns:
        Shape ``[N + B V, H, D]``; zero for a receiver without edges.
    """
    q, k = (x.transpose(0, 1).contiguous() for x in (q * q.size(-1) ** -0.5, k))  # one block per head
    scores = [sampled_product(edges.keys, *head) for head in zip(q.unbind(0), k.unbind(0))]
    if edge_score is not None:
        scores = [score.index_add(0, edges.graph_edge, added) for score, added in zip(scores, edge_score.unbind(1))]
    return softmax_over_entries(edges.values, scores, v, dropout).divide(origin)


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


def edge_softmax_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, edges: TypedEdges, edge_score: Tensor | None = None
) -> Tensor:
    """`edge_softmax_attention` from its definition, one receiver at a time, for tests."""
    extra = q.new_zeros(edges.keys.nnz, q.size(1))
    if edge_score is not None:
        extra = extra.index_copy(0, edges.graph_edge, edge_score)
    out = []
    for node in range(q.size(0)):
        entry = (edges.keys.row == node).nonzero().squeeze(1)
        keys, values = k[edges.keys.col[entry].long()], v[edges.values.col[entry].long()]
        score = (q[node] * keys).sum(-1) / q.size(-1) ** 0.5 + extra[entry]
        out.append((score.softmax(0)[..., None] * values).sum(0))
    return torch.stack(out) if out else v
