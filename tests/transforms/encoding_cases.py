"""Graphs and helpers that the tests of encodings share."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph, from_networkx, to_undirected

from pyg_topomask.ops.encodings.graph_batch import join_graphs
from pyg_topomask.testing import GRAPHS
from pyg_topomask.testing.graphs import empty_graph


def random_graph(num_nodes, degree=4.0, seed=0):
    torch.manual_seed(seed)
    return Data(edge_index=erdos_renyi_graph(num_nodes, min(1.0, degree / max(num_nodes, 1))), num_nodes=num_nodes)


def path(num_nodes):
    nodes = torch.arange(num_nodes - 1)
    return Data(edge_index=to_undirected(torch.stack([nodes, nodes + 1])), num_nodes=num_nodes)


def grid(*shape):
    graph = nx.grid_graph(shape[::-1])  # networkx names its last axis first
    order = {node: number for number, node in enumerate(sorted(graph))}
    grid = from_networkx(nx.relabel_nodes(graph, order))
    return Data(edge_index=grid.edge_index.view(2, -1).long(), num_nodes=graph.number_of_nodes())


CASES = {
    **GRAPHS,
    "empty": empty_graph(),
    "pair": path(2),
    "random": random_graph(40),
    "random directed": Data(edge_index=random_graph(40).edge_index[:, ::3], num_nodes=40),
    "loops": Data(edge_index=torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 0, 0, 2]]), num_nodes=3),
}
each_case = pytest.mark.parametrize("data", CASES.values(), ids=CASES)


def joined(data):
    return join_graphs([data.edge_index], [data.num_nodes], [data.get("edge_weight")])


def added(transform, data):
    before = set(data.keys())
    return {key: value for key, value in transform(data).to_dict().items() if key not in before}


def assert_same(found, wanted, atol=0):
    """Attributes are equal, bit for bit if no tolerance is given; also of several graphs. A number may have an axis."""
    for one, other in zip(found, wanted, strict=True) if isinstance(found, list) else [(found, wanted)]:
        assert {*one.keys()} == {*other.keys()}
        for key in other.keys():  # noqa: SIM118
            first, second = map(torch.as_tensor, (one[key], other[key]))
            first = first.view(second.shape) if first.numel() == 1 == second.numel() else first
            torch.testing.assert_close(first, second, rtol=0, atol=atol, equal_nan=True, msg=key)
