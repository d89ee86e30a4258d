import networkx as nx
import pytest
import torch
from torch_geometric.utils import from_networkx

from pyg_topomask.run.advise.graph_statistics import graph_statistics
from pyg_topomask.run.task import Task, classification

GRAPH_TASK = classification("graph", 2)


def with_features(graph, width=3):
    data = from_networkx(graph)
    data.x = torch.ones(data.num_nodes, width)
    return data


def measured(*graphs, task=GRAPH_TASK):
    return graph_statistics([with_features(graph) for graph in graphs], task)


def test_sizes_degrees_and_diameters_are_those_of_networkx():
    graphs = [nx.star_graph(7), nx.path_graph(9), nx.cycle_graph(6), nx.petersen_graph()]
    found = measured(*graphs)
    sizes = [graph.number_of_nodes() for graph in graphs]
    assert found.num_graphs == 4
    assert found.nodes == (min(sizes), pytest.approx(sum(sizes) / 4), max(sizes))
    assert found.edges[2] == 2 * max(graph.number_of_edges() for graph in graphs)
    assert found.mean_degree == pytest.approx(2 * sum(graph.number_of_edges() for graph in graphs) / sum(sizes))
    assert found.max_degree == 7
    diameters = sorted(map(nx.diameter, graphs))
    assert found.diameter == (pytest.approx((diameters[1] + diameters[2]) / 2), diameters[-1])
    assert found.is_exact
    assert (found.node_features, found.edge_features) == (3, None)


def test_distances_are_counted_over_all_pairs():
    graph = nx.disjoint_union(nx.path_graph(5), nx.cycle_graph(7))
    lengths = [d for _, row in nx.all_pairs_shortest_path_length(graph) for d in row.values() if d > 0]
    found = measured(graph)
    for hops in range(6):
        assert found.within(hops) == pytest.approx(sum(d <= hops for d in lengths) / len(lengths))


def test_one_way_edges_count_in_both_directions_for_distances():
    assert measured(nx.DiGraph([(0, 1), (2, 1), (2, 3)])).diameter == (3, 3)


def test_sweeps_find_the_diameter_of_a_large_tree():
    found = measured(nx.path_graph(500))
    assert not found.is_exact
    assert found.diameter == (499, 499)


def test_nodes_without_edges_to_others_are_isolated():
    graph = nx.path_graph(4)
    graph.add_nodes_from([4, 5])
    graph.add_edge(5, 5)
    assert measured(graph).isolated == pytest.approx(2 / 6)


def test_graphs_without_edges_have_no_distances():
    found = measured(nx.empty_graph(3), nx.empty_graph(1))
    assert found.diameter == (0, 0)
    assert found.within(5) == 0


def test_homophily_is_the_share_of_edges_within_a_class():
    data = with_features(nx.path_graph(5))
    data.y = torch.tensor([0, 0, 1, 1, 1])
    alone = with_features(nx.empty_graph(2))
    alone.y = torch.tensor([0, 1])
    assert graph_statistics([data, alone], classification("node", 2)).homophily == pytest.approx(3 / 4)
    assert graph_statistics([data], Task("node", "regression", 1)).homophily is None
