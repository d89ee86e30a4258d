"""Diagonals of random walks and of the heat kernel: dense references, PyG, and estimates."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import to_undirected

from pyg_topomask.ops.encodings import diagonals, heat_diagonals
from pyg_topomask.ops.encodings.diagonals import return_probabilities_reference
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddHeatDiagonalEncoding, AddRandomWalkEncoding
from tests.transforms.encoding_cases import CASES, each_case, joined, path, random_graph

STEPS = [1, 2, 3, 5, 8]
TIMES = [0.0, 0.5, 1.0, 7.0]


@each_case
def test_return_probabilities(data):
    found = AddRandomWalkEncoding(STEPS)(data)
    assert found.random_walk_diagonal.dtype == torch.float32
    wanted = return_probabilities_reference(joined(data), STEPS)
    torch.testing.assert_close(found.random_walk_diagonal.double(), wanted, rtol=0, atol=2e-6)
    assert found.random_walk_error.shape == (1, len(STEPS))
    assert (found.random_walk_error == 0).all()


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
    estimated = AddHeatDiagonalEncoding([50.0], method="estimate", tol=0.2)(weak.clone())
    gap = (estimated.heat_diagonal.double() - wanted).abs()
    assert (gap < 5 * estimated.heat_error.double() + 1e-6).all()


@pytest.mark.parametrize("name", ["random", "random directed", "two_parts"])
def test_estimates_are_unbiased_and_say_how_far_off_they_are(name):
    batch = joined(CASES[name])
    exact = return_probabilities_reference(batch, STEPS)
    runs = [diagonals.return_probabilities(batch, STEPS, method="estimate", tol=0.1, seed=s) for s in range(40)]
    check_estimates(runs, exact)
    even = [STEPS.index(2), STEPS.index(8)]
    if name != "random directed":
        assert (runs[0].error[:, even] <= 0.11 * exact[:, even] + 1e-6).all()
    heat = heat_diagonals.heat_diagonals(batch, TIMES, method="exact")
    runs = [heat_diagonals.heat_diagonals(batch, TIMES, method="estimate", tol=0.1, seed=s) for s in range(40)]
    check_estimates(runs, heat.value.double())


def check_estimates(runs, exact):
    values = torch.stack([run.value for run in runs]).double()
    errors = torch.stack([run.error for run in runs]).double()
    mean_error = errors.square().mean(0).sqrt()
    assert ((values.mean(0) - exact).abs() <= 5 * mean_error / len(runs) ** 0.5 + 5e-6).all()
    spread = (values - exact).square().mean().sqrt()
    assert 0.8 * mean_error.square().mean().sqrt() <= spread <= 1.25 * mean_error.square().mean().sqrt()


def test_auto_estimates_only_what_is_too_large(monkeypatch, caplog):
    monkeypatch.setattr(diagonals, "EXACT_NODES", 30)
    monkeypatch.setattr(diagonals, "_BUDGET", 30**2)
    monkeypatch.setattr(diagonals, "_SPARSE_NODES", 20)
    monkeypatch.setattr(diagonals, "_next_nnz", lambda matrix, power: 10**9 if power.nnz > 500 else 0)
    data, small = random_graph(100, 5.0), path(20)
    with caplog.at_level("INFO"):
        large, exact = AddRandomWalkEncoding(STEPS).apply([data, small])
    error = large.random_walk_error[0]
    assert (error[:2] == 0).all()
    assert (error[-1:] > 0).all()
    assert (exact.random_walk_error == 0).all()
    assert "random_walk_diagonal of 100 nodes: estimated" in caplog.text
    again = AddRandomWalkEncoding(STEPS)(data)  # the same computation: a graph that is too large is alone in its chunk
    assert torch.equal(again.random_walk_diagonal, large.random_walk_diagonal)
    other = AddRandomWalkEncoding(STEPS, seed=1)(data)
    assert not torch.equal(other.random_walk_diagonal, large.random_walk_diagonal)
    assert (AddHeatDiagonalEncoding([1.0])(data).heat_error > 0).all()
