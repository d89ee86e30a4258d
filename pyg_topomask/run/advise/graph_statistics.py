"""Sizes, degrees, distances and homophily of a data set's graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from torch_geometric.data import Data
from torch_geometric.utils import degree, homophily, to_scipy_sparse_matrix

from pyg_topomask.run.data.features import width
from pyg_topomask.run.task import Task

SAMPLED_GRAPHS, SAMPLED_NODES, SWEEPS = 50, 64, 2
"""Number of graphs, number of nodes of each graph from which distances are measured, and number of further searches,
each from the farthest node found so far."""

_MOST_ENTRIES = 2**24  # entries of the largest matrix of distances


@dataclass(frozen=True)
class GraphStatistics:
    """What was measured on the graphs, with edges in both directions for distances.

    Args:
        num_graphs: Number of graphs.
        nodes: Smallest, mean and largest number of nodes.
        edges: Smallest, mean and largest number of columns of ``edge_index``.
        mean_degree: Columns of ``edge_index`` per node.
        max_degree: Largest number of columns with the same first node.
        isolated: Share of nodes without an edge.
        diameter: Median and largest of the longest distances found in the sampled graphs. On graphs of more than 64
            nodes, searches start at 64 nodes, so that these are lower bounds.
        distances: Share of pairs of nodes at distance 1, 2, …, among pairs with a path between them.
        sampled_graphs: Number of graphs whose distances were measured.
        is_exact: Whether all distances were measured in these graphs.
        homophily: Share of edges between nodes of one class, if nodes have classes.
        node_features: Number of columns of node features.
        edge_features: Number of columns of edge features; None without them.
    """

    num_graphs: int
    nodes: tuple[int, float, int]
    edges: tuple[int, float, int]
    mean_degree: float
    max_degree: int
    isolated: float
    diameter: tuple[float, int]
    distances: tuple[float, ...]
    sampled_graphs: int
    is_exact: bool
    homophily: float | None
    node_features: int
    edge_features: int | None

    def within(self, hops: int) -> float:
        """Share of the pairs with a path whose distance is at most ``hops``."""
        return sum(self.distances[:hops])


def graph_statistics(graphs: Sequence[Data], task: Task, seed: int = 0) -> GraphStatistics:
    """Measure graphs that have features; distances on a sample of graphs and nodes."""
    rng = np.random.default_rng(seed)
    nodes = np.array([int(graph.num_nodes or 0) for graph in graphs])
    edges = np.array([graph.num_edges for graph in graphs])
    chosen = rng.permutation(np.flatnonzero(nodes > 1))[:SAMPLED_GRAPHS]
    counts, longest, exact = np.zeros(1), [], True
    for position in chosen:
        found, is_exact = _distances(graphs[position], rng)
        counts = np.pad(counts, (0, max(0, found.size - counts.size)))
        counts[: found.size] += found
        longest.append(found.size - 1)
        exact = exact and is_exact
    pairs = counts[1:].sum()
    outgoing = [degree(graph.edge_index[0], graph.num_nodes) for graph in graphs]
    return GraphStatistics(
        len(graphs),
        _spread(nodes),
        _spread(edges),
        float(edges.sum() / max(1, nodes.sum())),
        max((int(one.max()) for one in outgoing if one.numel()), default=0),
        sum(_isolated(graph) for graph in graphs) / max(1, int(nodes.sum())),
        (float(np.median(longest)), max(longest)) if longest else (0.0, 0),
        tuple((counts[1:] / max(1, pairs)).tolist()),
        len(chosen),
        exact,
        _homophily(graphs, task),
        width(graphs[0].x) or 0,
        width(graphs[0].edge_attr),
    )


def _spread(values: np.ndarray) -> tuple[int, float, int]:
    return int(values.min()), float(values.mean()), int(values.max())


def _isolated(graph: Data) -> int:
    ends = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool)
    source, target = graph.edge_index
    ends[torch.cat([source[source != target], target[source != target]])] = True
    return int((~ends).sum())


def _distances(graph: Data, rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    """Number of pairs at each distance from 0 to the largest found, and whether all nodes were searched from."""
    num_nodes = int(graph.num_nodes or 0)
    adjacency = to_scipy_sparse_matrix(graph.edge_index, num_nodes=num_nodes).tocsr()
    starts = np.arange(num_nodes)
    limit = min(SAMPLED_NODES, max(1, _MOST_ENTRIES // num_nodes))
    is_exact = num_nodes <= limit
    if not is_exact:
        starts = rng.permutation(num_nodes)[:limit]
    hops = shortest_path(adjacency, directed=False, unweighted=True, indices=starts)
    reached = hops[np.isfinite(hops)].astype(int)
    counts = np.bincount(reached)
    for _ in range(0 if is_exact else SWEEPS):  # the farthest node of a search is often at an end of the graph
        row = np.where(np.isfinite(hops), hops, -1.0).max(axis=1).argmax()
        far = np.where(np.isfinite(hops[row]), hops[row], -1.0).argmax()
        hops = shortest_path(adjacency, directed=False, unweighted=True, indices=[far])
        counts = np.pad(counts, (0, max(0, int(hops[np.isfinite(hops)].max()) + 1 - counts.size)))
    return counts, is_exact


def _homophily(graphs: Sequence[Data], task: Task) -> float | None:
    """Share of edges between nodes of one class over all graphs; None if the task does not give nodes classes."""
    if task.level != "node" or task.kind not in ("binary", "multiclass"):
        return None
    graphs = [graph for graph in graphs if graph.num_edges]  # the homophily of a graph without edges is NaN
    equal = sum(homophily(graph.edge_index, graph.y.view(-1), method="edge") * graph.num_edges for graph in graphs)
    return float(equal / max(1, sum(graph.num_edges for graph in graphs)))
