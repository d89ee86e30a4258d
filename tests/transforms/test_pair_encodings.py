"""Encodings of pairs of nodes, and what is derived from them, against their dense definitions."""

from itertools import pairwise

import networkx as nx
import torch

from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import dense_adjacency
from pyg_topomask.transforms import AddElectrostaticEncoding, AddRelativeWalkEncoding, AddShortestPathBias
from tests.transforms.encoding_cases import added, each_case, joined, path


@each_case
def test_electrostatic_encoding(data):
    found = AddElectrostaticEncoding()(data).electrostatic.double()
    size = data.num_nodes
    assert found.shape == (size, 8)
    if size == 0:
        return
    (lap,) = laplacian_reference(joined(data), None)
    green = torch.linalg.pinv(lap, hermitian=True, atol=1e-9)
    potential = green - green.diag()
    assert potential.max() <= 1e-9  # why the maxima are no features
    degree = lap.diag()
    walk = torch.where(degree > 0, 1 / degree, torch.zeros_like(degree))[:, None] * (degree.diag() - lap)
    spread = [potential.std(dim=d) if size > 1 else torch.zeros(1, dtype=torch.float64) for d in (0, 1)]
    wanted = [potential.min(0).values, potential.mean(0), spread[0], potential.min(1).values, potential.mean(1)]
    wanted += [spread[1], (walk * potential).sum(0), (walk * potential).sum(1)]
    torch.testing.assert_close(found, torch.stack(wanted, dim=1), rtol=1e-5, atol=1e-5)


@each_case
def test_relative_walks(data):
    steps = [0, 1, 4]
    adj = dense_adjacency(data)
    strength = adj.sum(1, keepdim=True)
    walk = adj / torch.where(strength > 0, strength, 1)
    wanted = torch.stack([torch.linalg.matrix_power(walk, k).flatten() for k in steps], dim=1)
    found = AddRelativeWalkEncoding(steps)(data).pair_relative_walk
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)


@each_case
def test_shortest_paths(data):
    size, kinds = data.num_nodes, 3
    graph = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(data.edge_index.t().tolist())
    typed = data.clone()
    typed.edge_attr = torch.arange(data.edge_index.size(1)) % 7
    type_of = dict(zip(map(tuple, data.edge_index.t().tolist()), typed.edge_attr.tolist()))
    found = AddShortestPathBias(kinds, paths=True)(typed)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    wanted = [
        min(lengths[i].get(j, 99), kinds - 1) if j in lengths[i] else kinds for i in range(size) for j in range(size)
    ]
    assert found.pair_shortest_path.tolist() == wanted
    assert found.pair_shortest_path.dtype == torch.int16
    assert found.shortest_path_in_degree.tolist() == [graph.in_degree(i) for i in range(size)]
    assert found.shortest_path_out_degree.tolist() == [graph.out_degree(i) for i in range(size)]
    for row, types in enumerate(found.pair_shortest_path_types.tolist()):
        i, j = divmod(row, size)
        ways = nx.all_shortest_paths(graph, i, j) if i != j and j in lengths[i] else [[i]]
        possible = [[type_of[edge] for edge in pairwise(way)][: kinds - 1] for way in ways]
        assert types in [way + [-1] * (kinds - 1 - len(way)) for way in possible]


def test_degrees_without_pairs():
    found = added(AddShortestPathBias(pairs=False), path(9000))
    assert set(found) == {"shortest_path_in_degree", "shortest_path_out_degree"}
