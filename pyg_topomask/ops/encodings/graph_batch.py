"""Many graphs as one block-diagonal adjacency, for computations that are done once per data set."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from pyg_topomask.ops.csr import CSR, drop_zeros, to_csr
from pyg_topomask.ops.sparse import Pattern


class GraphBatch(NamedTuple):
    """The disjoint union of several graphs, with equal edges added up; on the CPU."""

    csr: CSR
    """Adjacency of all nodes, float64, weights ≥ 0."""
    ptr: tuple[int, ...]
    """First node of each graph, followed by the number of nodes: ``B + 1`` numbers."""

    @property
    def num_nodes(self) -> int:
        """Total number of nodes of all graphs."""
        return self.ptr[-1]

    @property
    def sizes(self) -> list[int]:
        """Number of nodes of each graph."""
        return [stop - start for start, stop in zip(self.ptr, self.ptr[1:])]

    def rows(self, start: int, stop: int) -> CSR:
        """Adjacency of the graphs that make up nodes ``start`` to ``stop``."""
        if (start, stop) == (0, self.num_nodes):
            return self.csr
        part, entries = self.csr.pattern.rows(start, stop)
        return CSR(Pattern(part.row, part.col - start, stop - start, stop - start), self.csr.weight[entries])

    def graphs(self) -> Iterator[CSR]:
        """Adjacency of each graph, one after the other."""
        for start, stop in zip(self.ptr, self.ptr[1:]):
            yield self.rows(start, stop)


def join_graphs(
    edges: Sequence[Tensor], sizes: Sequence[int], weights: Sequence[Tensor | None] | None = None
) -> GraphBatch:
    """Disjoint union of checked graphs, without edges of weight 0.

    Args:
        edges: Edges of each graph, shape ``[2, E]``.
        sizes: Number of nodes of each graph.
        weights: Weights of each graph's edges, shape ``[E]``; one per edge if :obj:`None`.

    Raises:
        ValueError: If a weight is negative: encodings read a weight as the strength of a connection.
    """
    ptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    joined = [edge.cpu().long() + start for edge, start in zip(edges, ptr)]
    edge_index = torch.cat(joined, dim=1) if joined else torch.zeros(2, 0, dtype=torch.int64)
    values = [None] * len(joined) if weights is None else weights
    parts = [
        torch.ones(edge.size(1), dtype=torch.float64) if value is None else value.cpu().double().view(-1)
        for edge, value in zip(joined, values)
    ]
    weight = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    if bool((weight < 0).any()):
        raise ValueError(f"encodings need edge weights ≥ 0 (got {float(weight.min()):.3g})")
    return GraphBatch(drop_zeros(to_csr(edge_index, ptr[-1], weight)), tuple(ptr))


def strengths(csr: CSR) -> Tensor:
    """Sum of each row, shape ``[N]``."""
    return csr.weight.new_zeros(csr.num_nodes).index_add_(0, csr.row, csr.weight)


def is_symmetric(csr: CSR) -> bool:
    """Whether every edge exists in both directions with the same weight, up to rounding."""
    other = csr.T
    same = torch.equal(csr.pattern.rowptr, other.pattern.rowptr) and torch.equal(csr.col, other.col)
    return same and torch.allclose(csr.weight, other.weight, rtol=1e-12, atol=0)


def undirected(batch: GraphBatch) -> GraphBatch:
    """The larger weight of both directions, without self-loops. Laplacians of it have a real spectrum.

    A one-way edge has its weight in both directions, as in GraphGPS.
    """
    matrix = to_scipy(batch.csr)
    both = matrix.maximum(matrix.T).tocoo()
    off = both.row != both.col
    edges = torch.from_numpy(np.stack([both.row[off], both.col[off]])).long()
    return batch._replace(csr=to_csr(edges, batch.num_nodes, torch.from_numpy(both.data[off])))


def with_diagonal(csr: CSR, diagonal: Tensor) -> CSR:
    """The adjacency plus a diagonal matrix with the given entries ``[N]``."""
    nodes = torch.arange(csr.num_nodes)
    edges = torch.stack([torch.cat([csr.row, nodes]), torch.cat([csr.col, nodes])])
    return to_csr(edges, csr.num_nodes, torch.cat([csr.weight, diagonal]))


def to_scipy(csr: CSR) -> csr_matrix:
    """The adjacency as a SciPy matrix, float64."""
    return csr.pattern.scipy(csr.weight.numpy())
