import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

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


def is_closed_between_ends(edges, num_nodes):
    """Whether taking some edge off the cycle leaves a tree whose two farthest nodes it joined."""
    found = []
    for edge in edges:
        neighbours = neighbours_of([e for e in edges if e != edge], num_nodes)
        hops = [hops_from(neighbours, i) for i in range(num_nodes)]
        if len(hops[0]) == num_nodes:
            found.append(hops[edge[0]][edge[1]] == max(max(h.values()) for h in hops))
    return any(found)


@pytest.mark.parametrize("num_nodes", [5, 24])
def test_graphs_follow_the_protocol(tmp_path, num_nodes):
    dataset = InducedCycleDataset(tmp_path, num_graphs=40, num_nodes=num_nodes, seed=1)
    assert dataset.y.sum() == 20
    for data in dataset:
        data.validate()
        assert data.num_nodes == num_nodes
        assert data.num_edges == 2 * num_nodes  # in both classes: a tree and one more edge
        assert data.is_undirected()
        assert data.is_coalesced()
        assert not data.has_self_loops()
        edges = [(i, j) for i, j in data.edge_index.t().tolist() if i < j]
        assert len(hops_from(neighbours_of(edges, num_nodes), 0)) == num_nodes
        degree = [len(n) for n in neighbours_of(edges, num_nodes)]
        assert data.x.squeeze(1).tolist() == [d - 2 for d in degree]
        assert data.x.sum() == 0
        if data.y.item() == 1:
            assert is_closed_between_ends(edges, num_nodes)


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


def test_a_graph_depends_on_seed_and_number_alone(tmp_path):
    short = InducedCycleDataset(tmp_path, num_graphs=4, seed=7)
    torch.manual_seed(1)
    long = InducedCycleDataset(tmp_path, num_graphs=8, seed=7)
    assert all(torch.equal(a.edge_index, b.edge_index) and torch.equal(a.y, b.y) for a, b in zip(short, long))
    other = InducedCycleDataset(tmp_path, num_graphs=4, seed=8)
    assert not torch.equal(short[0].edge_index, other[0].edge_index)
    batch = next(iter(DataLoader(long, batch_size=8)))
    assert batch.x.shape == (400, 1)
    assert batch.y.tolist() == [0, 1] * 4


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"'num_nodes' must be at least 5.*got 4"):
        InducedCycleDataset(tmp_path, num_nodes=4)
    with pytest.raises(TypeError, match=r"'num_graphs' must be an int.*'many'"):
        InducedCycleDataset(tmp_path, num_graphs="many")
