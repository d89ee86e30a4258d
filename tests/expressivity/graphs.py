"""Graphs that colour refinement finds hard, random ones, and the test as it is written down."""

import torch
from torch_geometric.data import Data

from pyg_topomask.testing import permute


def graph(num_nodes, edges, directed=False, **attributes):
    edges = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    edges = edges if directed else torch.cat([edges, edges.flip(0)], dim=1)
    return Data(edge_index=edges, num_nodes=num_nodes, **attributes)


def cycles(*sizes):
    edges, start = [], 0
    for size in sizes:
        edges += [(start + i, start + (i + 1) % size) for i in range(size)]
        start += size
    return graph(start, edges)


def csl(num_nodes, skip):
    return graph(num_nodes, [(i, (i + step) % num_nodes) for i in range(num_nodes) for step in (1, skip)])


def relabelled(data, rng):
    """Nodes and edges in another order."""
    sizes = data.num_nodes, data.num_edges
    return permute(data, *(torch.tensor(rng.sample(range(size), size), dtype=torch.long) for size in sizes))


def random_graph(rng, num_nodes, directed=False, labels=0, edge_labels=0, loops=False):
    prob = rng.choice([0.15, 0.3, 0.5])
    places = [(i, j) for i in range(num_nodes) for j in range(num_nodes) if (i < j or directed or loops) and i != j]
    places += [(i, i) for i in range(num_nodes)] if loops else []
    data = graph(num_nodes, [place for place in places if rng.random() < prob], directed or loops)
    if labels:
        data.x = torch.tensor([[rng.randrange(labels)] for _ in range(num_nodes)], dtype=torch.float64).view(-1, 1)
    if edge_labels:
        kinds = torch.tensor([rng.randrange(edge_labels) for _ in range(data.num_edges)], dtype=torch.float64)
        data.edge_attr = kinds.view(-1, 1) * 0.25
    return data


def switched(data, rng):
    """Edges rewired so that all degrees stay: often equal for colour refinement, and not isomorphic."""
    edges = [tuple(e) for e in data.edge_index.t().tolist() if e[0] < e[1]]
    for _ in range(20):
        (a, b), (c, d) = rng.sample(edges, 2)
        present = {frozenset(e) for e in edges}
        if len({a, b, c, d}) == 4 and not {frozenset((a, c)), frozenset((b, d))} & present:
            edges.remove((a, b))
            edges.remove((c, d))
            edges += [(a, c), (b, d)]
    return graph(data.num_nodes, edges)


def definition(first, second, rounds):
    """The test as it is written down, with nested tuples in place of hashes: histograms of each round compared."""

    def read(data):
        n = data.num_nodes
        ones = torch.zeros(n, 1)
        color = [tuple(row) for row in (ones if data.x is None else data.x).tolist()]
        attr = torch.zeros(data.num_edges, 1) if data.edge_attr is None else data.edge_attr
        relation = {(v, u): (0, int(u == v), ()) for v in range(n) for u in range(n)}
        for (u, v), kind in zip(data.edge_index.t().tolist(), attr.tolist()):
            relation[v, u] = (1, int(u == v), tuple(kind))
        return n, color, relation

    graphs = [read(first), read(second)]
    table = {}
    for done in range(rounds + 1):
        if sorted(graphs[0][1]) != sorted(graphs[1][1]):
            return True
        if done == rounds:
            return False
        step = []
        for n, color, relation in graphs:
            new = []
            for v in range(n):
                seen = (color[v], tuple(sorted((color[u], relation[v, u]) for u in range(n))))
                new.append((table.setdefault(seen, len(table)),))
            step.append((n, new, relation))
        graphs = step
    raise AssertionError
