"""Diagonals of random walks and of the heat kernel: dense references and PyG."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import to_undirected

from pyg_topomask.ops.encodings import diagonals
from pyg_topomask.ops.encodings.diagonals import return_probabilities_reference
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddHeatDiagonalEncoding, AddLaplacianEncoding, AddRandomWalkEncoding
from tests.transforms.encoding_cases import CASES, added, each_case, joined, path, random_graph

STEPS = [1, 2, 3, 5, 8]
TIMES = [0.0, 0.5, 1.0, 7.0]


@each_case
def test_return_probabilities(data):
    found = AddRandomWalkEncoding(STEPS)(data)
    assert found.random_walk_diagonal.dtype == torch.float32
    wanted = return_probabilities_reference(joined(data), STEPS)
    torch.testing.assert_close(found.random_walk_diagonal.double(), wanted, rtol=0, atol=2e-6)


def test_return_probabilities_are_those_of_pyg():
    for data in (random_graph(50), CASES["random directed"], path(7)):
        wanted = AddRandomWalkPE(12)(data.clone()).random_walk_pe
        found = AddRandomWalkEncoding(range(1, 13))(data).random_walk_diagonal
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("max_nnz", [0, 10**9])
def test_return_probabilities_of_large_graphs(max_nnz, monkeypatch):
    monkeypatch.setattr(diagonals, "_SPARSE_NODES", 20)
    monkeypatch.setattr(diagonals, "_BUDGET", 300)  # a few columns at a time
    if max_nnz == 0:
        monkeypatch.setattr(diagonals, "_next_nnz", lambda *args: 10**12)
    for data in (CASES["random"], CASES["random directed"], GRAPHS["weighted"]):
        wanted = return_probabilities_reference(joined(data), STEPS)
        found = AddRandomWalkEncoding(STEPS)(data).random_walk_diagonal.double()
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@each_case
def test_heat_diagonals(data):
    found = AddHeatDiagonalEncoding(TIMES)(data).heat_diagonal.double()
    (lap,) = laplacian_reference(joined(data), None)
    values, vectors = torch.linalg.eigh(lap)
    keep = values > 1e-8
    decay = torch.exp(-values[keep, None] * torch.tensor(TIMES, dtype=torch.float64))
    torch.testing.assert_close(found, vectors[:, keep].square() @ decay, rtol=0, atol=5e-6)


def test_heat_diagonals_of_large_diffusion():
    """Float32 would lose small eigenvalues beside large ones; weights and times that differ by 1e7 show it."""
    nodes = torch.arange(9)
    weight = torch.full((9,), 1e5).index_fill(0, torch.tensor([4]), 0.01)
    edges, weight = to_undirected(torch.stack([nodes, nodes + 1]), weight)
    weak = Data(edge_index=edges, edge_weight=weight, num_nodes=10)
    strong = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.full((2,), 1e5), num_nodes=2)
    transform = AddHeatDiagonalEncoding([50.0])
    for data in (path(10), weak):
        (lap,) = laplacian_reference(joined(data), None)
        values, vectors = torch.linalg.eigh(lap)
        wanted = vectors[:, 1:].square() @ torch.exp(-50.0 * values[1:, None])
        for found in (transform(data.clone()), transform([data, strong])[0]):
            torch.testing.assert_close(found.heat_diagonal.double(), wanted, rtol=0, atol=5e-6)


def test_one_way_edges_count_in_both_directions():
    data = CASES["random directed"]
    both = Data(edge_index=to_undirected(data.edge_index), num_nodes=data.num_nodes)
    for transform in (AddHeatDiagonalEncoding([1.0]), *(AddLaplacianEncoding(5, norm) for norm in (None, "sym", "rw"))):
        mine, theirs = added(transform, data), added(transform, both)
        assert all(torch.equal(mine[key].nan_to_num(), value.nan_to_num()) for key, value in theirs.items())
