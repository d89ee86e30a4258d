"""Encodings of all pairs of nodes of each graph, ragged: one row per pair, row-major, one graph after the other."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components, shortest_path
from torch import Tensor

from pyg_topomask.ops.csr import root_strengths
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, to_scipy, undirected

MAX_PAIR_NODES = 8192
"""Largest graph whose pairs are all encoded: 67 million rows."""


def check_pair_sizes(sizes: Sequence[int], what: str) -> None:
    """Refuse graphs that have too many pairs for the memory.

    Raises:
        ValueError: If a graph has more than 8192 nodes.
    """
    if max(sizes, default=0) > MAX_PAIR_NODES:
        raise ValueError(
            f"{what} need all pairs of nodes of a graph, at most {MAX_PAIR_NODES} nodes of it (got {max(sizes)}). "
            "Sample subgraphs first, or use an encoding of nodes"
        )


def relative_walks(batch: GraphBatch, steps: Sequence[int]) -> Tensor:
    r"""Probabilities :math:`(P^k)_{ij}`, with :math:`P = D^{-1} A`, that a walk of k steps leads from i to j.

    Reference: Ma et al., *Graph Inductive Biases in Transformers without Message Passing*, ICML 2023,
    arXiv:2305.17589, Section 3.1 (``steps = range(K)``; step 0 is the identity).

    Args:
        batch: Graphs.
        steps: Numbers ``k ≥ 0``.

    Returns:
        Shape ``[sum n², K]``, float32.
    """
    csr = batch.csr
    root = root_strengths(csr)[csr.row]
    walk = batch._replace(csr=csr._replace(weight=csr.weight / root / root))
    found = torch.zeros(sum(size * size for size in batch.sizes), len(steps), dtype=torch.float32)
    row = 0
    for size, part in zip(batch.sizes, walk.graphs()):
        rows = slice(row, row := row + size * size)
        dense = torch.from_numpy(to_scipy(part).toarray()).float()
        power = torch.eye(size, dtype=torch.float32)
        for k in range(max(steps) + 1):
            found[rows, [column for column, step in enumerate(steps) if step == k]] = power.view(-1, 1)
            power = power @ dense if k < max(steps) else power
    return found


def shortest_path_lengths(batch: GraphBatch) -> tuple[Tensor, list[np.ndarray]]:
    """Hops from i to j along the direction of edges; −1 if there is no path.

    Returns:
        Shape ``[sum n²]``, int32, and for each graph a matrix ``[n, n]`` with the node before j on the path from i,
        negative if there is none.
    """
    hops, before = [torch.zeros(0, dtype=torch.int32)], []
    for csr in batch.graphs():
        if csr.num_nodes == 0:
            before.append(np.zeros((0, 0), dtype=np.int32))
            continue
        length, previous = shortest_path(
            to_scipy(csr), method="D", directed=True, unweighted=True, return_predecessors=True
        )
        hops.append(torch.from_numpy(np.where(np.isfinite(length), length, -1).astype(np.int32).ravel()))
        before.append(previous)
    return torch.cat(hops), before


def types_along_paths(hops: np.ndarray, before: np.ndarray, edge_type: np.ndarray, depth: int) -> np.ndarray:
    """Types of the first ``depth`` edges of a shortest path between every two nodes of one graph.

    Args:
        hops: Lengths of shortest paths, shape ``[n, n]``; −1 if there is no path.
        before: Node before j on the path from i, shape ``[n, n]``.
        edge_type: Type of the edge from i to j, shape ``[n, n]``.
        depth: Number of edges.

    Returns:
        Shape ``[n, n, depth]``, int16; −1 beyond the end of a path.
    """
    found = np.full((*hops.shape, depth), -1, dtype=np.int16)
    for length in range(1, int(hops.max(initial=0)) + 1):  # extend the paths that are one edge shorter
        start, end = np.nonzero(hops == length)
        previous = before[start, end]
        found[start, end] = found[start, previous]
        if length <= depth:
            found[start, end, length - 1] = edge_type[previous, end]
    return found


_FLOAT32 = np.finfo(np.float32)

NUM_ELECTROSTATIC = 8
"""Columns of `electrostatic_encoding`."""


def electrostatic_encoding(batch: GraphBatch) -> Tensor:
    r"""Statistics of the potentials that unit charges on the nodes produce: shape ``[N, 8]``, float64.

    :math:`V_{ij} = L^+_{ij} - L^+_{jj}` with the pseudo-inverse of :math:`L = D - A` of the larger weight of both
    directions. Columns: minimum, mean and standard deviation over i of :math:`V_{ij}`; the same over i of
    :math:`V_{ji}`; the sums :math:`\sum_i P_{ij} V_{ij}` and :math:`\sum_i P_{ji} V_{ji}` over neighbours, with
    :math:`P = D^{-1} A`. These are the columns of GraphGPS's ElstaticSE without the maxima, which are 0 on every graph
    since :math:`L^+_{jj}` is the largest entry of its column. A deviation over one node is 0.

    Cost: :math:`O(n^3)` operations and :math:`O(n^2)` memory for a graph of n nodes.

    Raises:
        ValueError: If weights are so small or so large that potentials of a node leave the range of float32.
    """
    found = [torch.zeros(0, NUM_ELECTROSTATIC, dtype=torch.float64)]
    for csr in undirected(batch).graphs():
        adj = to_scipy(csr)
        size = adj.shape[0]
        if size == 0:
            continue
        num_parts, label = connected_components(adj, directed=False)
        null = (label[:, None] == label) / np.bincount(label, minlength=num_parts)[label]
        dense = adj.toarray()
        top = np.zeros(num_parts)  # the matrix is well scaled in units of each component's largest weight
        np.maximum.at(top, label, dense.max(axis=1))
        unit = np.where(top > 0, top, 1.0)[label]
        dense /= unit[:, None]
        degree = dense.sum(axis=1)
        with np.errstate(over="ignore"):
            green = (np.linalg.inv(np.diag(degree) - dense + null) - null) / unit
        largest = np.abs(green).max(axis=1)
        beyond = ~(largest < _FLOAT32.max) | ((largest > 0) & (largest < _FLOAT32.tiny))
        if bool(beyond.any()):
            raise ValueError(
                f"electrostatic potentials are beyond float32 (edge weights of a component are at most "
                f"{unit[beyond].min():.3g}); multiply the weights by a constant"
            )
        potential = green - np.diag(green)
        walk = dense / np.where(degree > 0, degree, 1.0)[:, None]
        columns = []
        for axis in (0, 1):
            spread = potential.std(axis=axis, ddof=1) if size > 1 else np.zeros(size)
            columns += [potential.min(axis=axis), potential.mean(axis=axis), spread]
        columns += [(walk * potential).sum(axis=axis) for axis in (0, 1)]
        found.append(torch.from_numpy(np.stack(columns, axis=1)))
    return torch.cat(found)
