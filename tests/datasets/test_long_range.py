"""Targets several hops away, checked one by one with networkx."""

import networkx as nx
import pytest
import torch
from torch_geometric.utils import to_networkx

from pyg_topomask.datasets import LONG_RANGE, LongRangeDataset


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    root = tmp_path_factory.mktemp("long_range")
    return {task: list(LongRangeDataset(root, task, num_graphs=4, num_nodes=20)) for task in LONG_RANGE}


def distances(data):
    graph = to_networkx(data, to_undirected=True)
    assert 2 * graph.number_of_edges() == data.num_edges  # each edge both ways, once
    return dict(nx.all_pairs_shortest_path_length(graph))


def test_share_of_the_own_label_within_four_hops(graphs):
    for data in graphs["share"]:
        label, hops = data.x.argmax(1).tolist(), distances(data)
        assert (data.x.sum(1) == 1).all()
        for node in range(20):
            near = [other for other, length in hops[node].items() if 0 < length <= 4]
            wanted = sum(label[other] == label[node] for other in near) / len(near)
            assert float(data.y[node]) == pytest.approx(wanted)
        nearest = torch.cdist(data.pos, data.pos).topk(4, largest=False).indices[:, 1:]
        assert all(hops[node][other] == 1 for node in range(20) for other in nearest[node].tolist())


def test_distance_to_the_marked_node_of_a_tree(graphs):
    for data in graphs["tree"]:
        (marked,) = data.x[:, 0].nonzero().flatten().tolist()
        hops = distances(data)[marked]
        assert data.num_edges == 38
        assert data.y.tolist() == [min(hops[node], 9) for node in range(20)]
    assert len({int(data.x.argmax()) for data in graphs["tree"]}) > 1


def test_number_at_the_opposite_node_of_a_ring(graphs):
    for data in graphs["ring"]:
        hops = distances(data)
        for node in range(20):
            (opposite,) = [other for other, length in hops[node].items() if length == 10]
            assert data.y[node] == data.x[opposite, 0]
