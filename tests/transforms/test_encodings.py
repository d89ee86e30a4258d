"""Encodings of nodes and of pairs of nodes, against their dense definitions and PyG."""

from itertools import pairwise

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import to_undirected

from pyg_topomask import transforms
from pyg_topomask.ops.encodings import diagonals, spectral
from pyg_topomask.ops.encodings.diagonals import return_probabilities_reference
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import GRAPHS, dense_adjacency, permute
from tests.transforms.encoding_cases import CASES, added, each_case, joined, path, random_graph

STEPS = [1, 2, 3, 5, 8]
TIMES = [0.0, 0.5, 1.0, 7.0]


@each_case
def test_return_probabilities(data):
    found = transforms.AddRandomWalkEncoding(STEPS)(data)
    assert found.random_walk_diagonal.dtype == torch.float32
    wanted = return_probabilities_reference(joined(data), STEPS)
    torch.testing.assert_close(found.random_walk_diagonal.double(), wanted, rtol=0, atol=2e-6)


def test_return_probabilities_are_those_of_pyg():
    for data in (random_graph(50), CASES["random directed"], path(7)):
        wanted = AddRandomWalkPE(12)(data.clone()).random_walk_pe
        found = transforms.AddRandomWalkEncoding(range(1, 13))(data).random_walk_diagonal
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("max_nnz", [0, 10**9])
def test_return_probabilities_of_large_graphs(max_nnz, monkeypatch):
    monkeypatch.setattr(diagonals, "_SPARSE_NODES", 20)
    monkeypatch.setattr(diagonals, "_BUDGET", 300)  # a few columns at a time
    if max_nnz == 0:
        monkeypatch.setattr(diagonals, "_next_nnz", lambda *args: 10**12)
    for data in (CASES["random"], CASES["random directed"], GRAPHS["weighted"]):
        wanted = return_probabilities_reference(joined(data), STEPS)
        found = transforms.AddRandomWalkEncoding(STEPS)(data).random_walk_diagonal.double()
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@each_case
def test_heat_diagonals(data):
    found = transforms.AddHeatDiagonalEncoding(TIMES)(data).heat_diagonal.double()
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
    transform = transforms.AddHeatDiagonalEncoding([50.0])
    for data in (path(10), weak):
        (lap,) = laplacian_reference(joined(data), None)
        values, vectors = torch.linalg.eigh(lap)
        wanted = vectors[:, 1:].square() @ torch.exp(-50.0 * values[1:, None])
        for found in (transform(data.clone()), transform([data, strong])[0]):
            torch.testing.assert_close(found.heat_diagonal.double(), wanted, rtol=0, atol=5e-6)


def test_one_way_edges_count_in_both_directions():
    data = CASES["random directed"]
    both = Data(edge_index=to_undirected(data.edge_index), num_nodes=data.num_nodes)
    for transform in (
        transforms.AddHeatDiagonalEncoding([1.0]),
        *(transforms.AddLaplacianEncoding(5, norm) for norm in (None, "sym", "rw")),
    ):
        mine, theirs = added(transform, data), added(transform, both)
        assert all(torch.equal(mine[key].nan_to_num(), value.nan_to_num()) for key, value in theirs.items())


def failing(*args):
    raise spectral.ArpackError(-9999)


def unconverged(*args, **settings):
    raise spectral.LinAlgError("did not converge")


@each_case
@pytest.mark.parametrize("norm", ["sym", "rw", None])
def test_laplacian_eigenpairs(data, norm):
    size, k = data.num_nodes, 6
    found = transforms.AddLaplacianEncoding(k, norm)(data)
    vectors, values = found.laplacian_vectors, found.laplacian_values
    assert vectors.dtype == values.dtype == torch.float32
    assert vectors.shape == values.shape == (size, k)
    count = min(k, size)
    assert vectors[:, count:].isnan().all()
    assert values[:, count:].isnan().all()
    (lap,) = laplacian_reference(joined(data), norm)
    if size == 0:
        return
    vectors, values = vectors[:, :count].double(), values[0, :count].double()
    wanted = torch.linalg.eigvals(lap).real.sort().values[:count]
    torch.testing.assert_close(values, wanted.clamp(min=0), rtol=0, atol=2e-6)
    torch.testing.assert_close(lap @ vectors, vectors * values, rtol=0, atol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=0), torch.ones(count, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(vectors, rtol=1e-3) == count
    assert (found.laplacian_values[:, :count] == found.laplacian_values[:1, :count]).all()


def test_signs_follow_a_relabelling():
    data, perm = random_graph(40, 8.0), torch.randperm(40)
    found, moved = transforms.AddLaplacianEncoding(4)(data), transforms.AddLaplacianEncoding(4)(permute(data, perm))
    assert found.laplacian_values[0].diff().min() > 1e-3
    torch.testing.assert_close(moved.laplacian_vectors, found.laplacian_vectors[perm], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["wavelength", "wavelength-asin", "wavelength-soft"])
def test_rounding_of_the_eigenvalue_0_is_no_wavelength(norm):
    """With large weights, it is not small itself."""
    heavy, light = path(200), path(200)
    light.edge_weight = torch.linspace(1, 2, 199, dtype=torch.float64).repeat(2)
    heavy.edge_weight = light.edge_weight * 1e6
    found, wanted = (transforms.AddLaplacianEncoding(3, None, norm)(graph) for graph in (heavy, light))
    assert found.laplacian_values[0, 0] == 0
    torch.testing.assert_close(found.laplacian_vectors[:, 0], wanted.laplacian_vectors[:, 0])


@pytest.mark.parametrize("norm", spectral.EIGVEC_NORMS)
def test_eigenvector_norms(norm):
    data = random_graph(30, 8.0)
    plain = transforms.AddLaplacianEncoding(5)(data)
    vectors, values = plain.laplacian_vectors.double(), plain.laplacian_values[0].double()
    root, size = torch.where(values < 1e-6, 1.0, values).sqrt(), vectors.abs()
    wanted = {
        "L1": vectors / size.sum(0),
        "L2": vectors,
        "abs-max": vectors / size.max(0).values,
        "wavelength": vectors * torch.pi / (2 * size.max(0).values * root),
        "wavelength-asin": torch.asin((vectors / size.max(0).values).clamp(-1, 1)) / root,
        "wavelength-soft": vectors / ((size.softmax(0) * size).sum(0) * root),
    }[norm]
    found = transforms.AddLaplacianEncoding(5, eigvec_norm=norm)(data).laplacian_vectors.double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3 if "asin" in norm else 1e-5)


@pytest.mark.parametrize("way", ["both", "inverse", "dense", "all pairs"])
def test_large_graphs_by_every_way(way, monkeypatch):
    data = Batch.from_data_list([random_graph(300, 6.0), path(90), path(1), path(90)])
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    for norm in ("sym", None):
        wanted = transforms.AddLaplacianEncoding(12, norm)(data)
        monkeypatch.setattr(spectral, "DENSE_NODES", 10)
        if way != "both":
            monkeypatch.setattr(spectral, "_lanczos", failing)
        if way in ("dense", "all pairs"):
            monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
        if way == "all pairs":  # LAPACK fails to find some of them alone
            monkeypatch.setattr(spectral, "eigh", unconverged)
        found = transforms.AddLaplacianEncoding(12, norm)(data)
        monkeypatch.undo()
        torch.testing.assert_close(found.laplacian_values, wanted.laplacian_values, rtol=0, atol=1e-6)
        (lap,) = laplacian_reference(joined(data), norm)
        vectors, values = found.laplacian_vectors.double(), found.laplacian_values[0].double()
        torch.testing.assert_close(lap @ vectors, vectors * values, rtol=0, atol=1e-5)
        torch.testing.assert_close(vectors.t() @ vectors, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-5)


def test_a_graph_beyond_all_ways_says_so(monkeypatch):
    for name, value in (("DENSE_NODES", 10), ("FALLBACK_NODES", 20), ("_lanczos", failing)):
        monkeypatch.setattr(spectral, name, value)
    monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
    with pytest.raises(RuntimeError, match="component of 90 nodes"):
        transforms.AddLaplacianEncoding(3)(path(90))


@each_case
def test_electrostatic_encoding(data):
    found = transforms.AddElectrostaticEncoding()(data).electrostatic.double()
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
    found = transforms.AddRelativeWalkEncoding(steps)(data).pair_relative_walk
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
    found = transforms.AddShortestPathBias(kinds, paths=True)(typed)
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
    found = added(transforms.AddShortestPathBias(pairs=False), path(9000))
    assert set(found) == {"shortest_path_in_degree", "shortest_path_out_degree"}
