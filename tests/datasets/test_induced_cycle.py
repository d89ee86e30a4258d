import numpy as np

from pyg_topomask.datasets import InducedCycleDataset
from pyg_topomask.datasets.induced_cycle import random_binary_tree


def hops_from(neighbours, start):
    """Breadth-first search: distance of every node that can be reached."""
    hops, frontier = {start: 0}, [start]
    while frontier:
        frontier = [j for i in frontier for j in neighbours[i] if j not in hops and not hops.update({j: hops[i] + 1})]
    return hops


def neighbours_of(edges, num_nodes):
    neighbours = [[] for _ in range(num_nodes)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    return neighbours


def test_tree_and_closing_edge_are_those_of_the_class(tmp_path, monkeypatch):
    import pyg_topomask.datasets.induced_cycle as module

    trees = []

    def remember(rng, num_nodes):
        trees.append(random_binary_tree(rng, num_nodes))
        return trees[-1]

    monkeypatch.setattr(module, "random_binary_tree", remember)
    dataset = InducedCycleDataset(tmp_path, num_graphs=60, num_nodes=30)
    assert len(trees) == 60
    for parent, data in zip(trees, dataset):
        tree = {(int(p), i) for i, p in enumerate(parent) if p >= 0}
        edges = {(i, j) for i, j in data.edge_index.t().tolist() if i < j}
        (closing,) = edges - tree
        assert tree < edges
        neighbours = neighbours_of(tree, 30)
        hops = [hops_from(neighbours, i) for i in range(30)]
        diameter = max(max(h.values()) for h in hops)
        length = hops[closing[0]][closing[1]]
        assert length == diameter if data.y.item() else 1 < length < diameter


def test_random_binary_tree_has_the_shape_of_a_random_search_tree():
    rng = np.random.default_rng(0)
    draws = [random_binary_tree(rng, 5) for _ in range(4000)]
    for parent in draws:
        assert parent[0] == -1
        assert (parent[1:] < np.arange(1, 5)).all()
        assert np.bincount(parent[1:]).max() <= 2
    # depth of the node inserted last: harmonic, 2 (H_5 - 1) = 77 / 30
    depth = []
    for parent in draws:
        node, steps = 4, 0
        while parent[node] >= 0:
            node, steps = parent[node], steps + 1
        depth.append(steps)
    assert abs(np.mean(depth) - 77 / 30) <= 5 * np.std(depth) / 4000**0.5
