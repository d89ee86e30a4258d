"""Spanning forests: against networkx, in batches, and what is refused."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddTreeOrder
from pyg_topomask.transforms.tree_order import METHODS


def graph_of(data):
    graph = nx.empty_graph(data.num_nodes)
    graph.add_edges_from(data.edge_index.t().tolist())
    graph.remove_edges_from(nx.selfloop_edges(graph))
    return graph


def tree_of(data):
    pairs = [(i, p) for i, p in data.tree_index.t().tolist() if i != p]
    tree = nx.empty_graph(data.num_nodes)
    tree.add_edges_from(pairs)
    return tree


def random_data(seed=0, num_nodes=30, prob=0.08):
    return from_networkx(nx.gnp_random_graph(num_nodes, prob, seed=seed))


CASES = {**GRAPHS, "random": random_data(), "dense": random_data(1, 20, 0.5), "loops": Data(
    edge_index=torch.tensor([[0, 0, 1, 2, 2], [0, 1, 0, 1, 1]]), num_nodes=3
)}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_it_is_a_spanning_forest_sorted_by_depth(name, method):
    data = CASES[name].clone()
    data.far = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(0))
    made = AddTreeOrder(method, length="far")(data)
    graph, tree = graph_of(data), tree_of(made)
    assert set(map(frozenset, tree.edges)) <= set(map(frozenset, graph.edges))
    assert nx.is_forest(tree)
    assert list(map(set, nx.connected_components(tree))) == list(map(set, nx.connected_components(graph)))
    assert made.tree_size == data.num_nodes
    node, parent = made.tree_index.tolist()
    assert sorted(node) == list(range(data.num_nodes))
    depth = {}
    for i, p in zip(node, parent):  # a parent stands before its children
        depth[i] = 0 if i == p else depth[p] + 1
    assert list(depth.values()) == sorted(depth.values())
    roots = {i for i, p in zip(node, parent) if i == p}
    for part in nx.connected_components(graph):
        degree = {i: graph.degree(i) for i in part}
        assert roots & part == {min(i for i in part if degree[i] == max(degree.values()))}
    for i, p, length in zip(node, parent, made.tree_length.tolist()):
        both = ((data.edge_index == torch.tensor([[i], [p]])) | (data.edge_index == torch.tensor([[p], [i]]))).all(0)
        assert length == (0 if i == p else float(data.far[both].min()))


@pytest.mark.parametrize("name", CASES)
def test_breadth_first_keeps_the_distances_to_the_root(name):
    made = AddTreeOrder()(CASES[name].clone())
    graph, tree = graph_of(made), tree_of(made)
    for root in (i for i, p in made.tree_index.t().tolist() if i == p):
        assert nx.single_source_shortest_path_length(tree, root) == nx.single_source_shortest_path_length(graph, root)


def test_minimum_is_the_minimum_spanning_tree():
    data = random_data(2, 20, 0.4)
    data.far = torch.rand(data.num_edges, dtype=torch.float64)
    data.far[:3] = 0  # zero is a length, not a missing edge
    graph = nx.empty_graph(20)
    for i, j, length in zip(*data.edge_index.tolist(), data.far.tolist()):
        known = graph.get_edge_data(i, j, {"weight": length})["weight"]
        graph.add_edge(i, j, weight=min(known, length))
    wanted = nx.minimum_spanning_tree(graph)
    assert set(map(frozenset, tree_of(AddTreeOrder("minimum", "far")(data)).edges)) == set(map(frozenset, wanted.edges))


def test_a_deep_graph_takes_no_recursion():
    path = torch.stack([torch.arange(2999), torch.arange(1, 3000)])
    made = AddTreeOrder()(Data(edge_index=path, num_nodes=3000))
    assert tree_of(made).number_of_edges() == 2999
