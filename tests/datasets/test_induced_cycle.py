import networkx as nx
import numpy as np

from pyg_topomask.datasets import InducedCycleDataset, induced_cycle
from pyg_topomask.datasets.induced_cycle import random_binary_tree


def test_tree_and_closing_edge_are_those_of_the_class(tmp_path, monkeypatch):
    trees = []
    monkeypatch.setattr(
        induced_cycle, "random_binary_tree", lambda *given: trees.append(random_binary_tree(*given)) or trees[-1]
    )
    dataset = InducedCycleDataset(tmp_path, num_graphs=60, num_nodes=30)
    for parent, data in zip(trees, dataset, strict=True):
        tree = {(int(p), i) for i, p in enumerate(parent) if p >= 0}
        edges = {(i, j) for i, j in data.edge_index.t().tolist() if i < j}
        (closing,) = edges - tree
        assert tree < edges
        graph = nx.Graph(tree)
        diameter, length = nx.diameter(graph), nx.shortest_path_length(graph, *closing)
        assert length == diameter if data.y.item() else 1 < length < diameter


def test_random_binary_tree_has_the_shape_of_a_random_search_tree():
    rng = np.random.default_rng(0)
    draws = [random_binary_tree(rng, 5) for _ in range(4000)]
    for parent in draws:
        assert parent[0] == -1
        assert (parent[1:] < np.arange(1, 5)).all()
        assert np.bincount(parent[1:]).max() <= 2
    # depth of the node inserted last: harmonic, 2 (H_5 - 1) = 77 / 30
    depth = [nx.shortest_path_length(nx.Graph([*zip(parent[1:], range(1, 5))]), 0, 4) for parent in draws]
    assert abs(np.mean(depth) - 77 / 30) <= 5 * np.std(depth) / 4000**0.5
