"""Encodings against their dense definitions, PyG's transforms, and each other on many graphs at once."""

from itertools import pairwise

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import erdos_renyi_graph, get_laplacian, to_dense_adj, to_undirected

from pyg_topomask.ops.encodings import diagonals, heat_diagonals, spectral
from pyg_topomask.ops.encodings.diagonals import return_probabilities_reference
from pyg_topomask.ops.encodings.graph_batch import join_graphs
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import GRAPHS, dense_adjacency, permute
from pyg_topomask.testing.graphs import empty_graph
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)

STEPS = [1, 2, 3, 5, 8]
TIMES = [0.0, 0.5, 1.0, 7.0]


def random_graph(num_nodes, degree=4.0, seed=0):
    torch.manual_seed(seed)
    return Data(edge_index=erdos_renyi_graph(num_nodes, min(1.0, degree / max(num_nodes, 1))), num_nodes=num_nodes)


def path(num_nodes):
    nodes = torch.arange(num_nodes - 1)
    return Data(edge_index=to_undirected(torch.stack([nodes, nodes + 1])), num_nodes=num_nodes)


CASES = {
    **GRAPHS,
    "empty": empty_graph(),
    "pair": path(2),
    "random": random_graph(40),
    "random directed": Data(edge_index=random_graph(40).edge_index[:, ::3], num_nodes=40),
    "loops": Data(edge_index=torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 0, 0, 2]]), num_nodes=3),
}
ALL = [
    AddLaplacianEncoding(6),
    AddLaplacianEncoding(6, "rw", "abs-max"),
    AddLaplacianEncoding(3, None, "wavelength"),
    AddRandomWalkEncoding(STEPS),
    AddHeatDiagonalEncoding(TIMES),
    AddElectrostaticEncoding(),
    AddShortestPathBias(4),
    AddRelativeWalkEncoding([0, 1, 4]),
]
each_case = pytest.mark.parametrize("data", CASES.values(), ids=CASES)
each_encoding = pytest.mark.parametrize("transform", ALL, ids=str)


def joined(data):
    return join_graphs([data.edge_index], [data.num_nodes], [data.get("edge_weight")])


def added(transform, data):
    before = set(data.keys())
    return {key: value for key, value in transform(data).to_dict().items() if key not in before}


@each_case
@pytest.mark.parametrize("norm", ["sym", "rw", None])
def test_laplacian_eigenpairs(data, norm):
    size, k = data.num_nodes, 6
    found = AddLaplacianEncoding(k, norm)(data)
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


@pytest.mark.parametrize("seed", range(3))
def test_eigenvectors_span_what_pyg_finds(seed):
    data = random_graph(60, seed=seed)
    data.edge_index = to_undirected(torch.cat([data.edge_index, torch.tensor([[0] * 59, [*range(1, 60)]])], 1))
    ours = AddLaplacianEncoding(8)(data).laplacian_vectors[:, 1:].double()
    theirs = AddLaplacianEigenvectorPE(7, is_undirected=True)(data).laplacian_eigenvector_pe.double()
    index, weight = get_laplacian(data.edge_index, normalization="sym", num_nodes=60)
    values = torch.linalg.eigvalsh(to_dense_adj(index, edge_attr=weight)[0].double())
    assert values[1:9].diff().min() > 1e-4  # single eigenvalues: each vector is the other's up to its sign
    torch.testing.assert_close((ours * theirs).sum(0).abs(), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-5)


def test_signs_are_canonical():
    star = GRAPHS["star"]
    for data in (star, path(9), random_graph(30)):
        first = AddLaplacianEncoding(5)(data).laplacian_vectors
        again = AddLaplacianEncoding(5)(data).laplacian_vectors
        assert torch.equal(first, again)
    data = random_graph(40, 8.0)
    perm = torch.randperm(40)
    values = AddLaplacianEncoding(4)(data).laplacian_values[0]
    assert values.diff().min() > 1e-3
    moved = AddLaplacianEncoding(4)(permute(data, perm)).laplacian_vectors
    torch.testing.assert_close(moved, AddLaplacianEncoding(4)(data).laplacian_vectors[perm], rtol=0, atol=1e-5)
    signs = spectral.canonical_signs(torch.tensor([[1.0, -1], [-1, 1], [0, 0]], dtype=torch.float64).numpy())
    assert signs.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("norm", spectral.EIGVEC_NORMS)
def test_eigenvector_norms(norm):
    data = random_graph(30, 8.0)
    plain = AddLaplacianEncoding(5)(data)
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
    found = AddLaplacianEncoding(5, eigvec_norm=norm)(data).laplacian_vectors.double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3 if "asin" in norm else 1e-5)


@pytest.mark.parametrize("way", ["both", "inverse", "dense"])
def test_large_graphs_by_sparse_ways(way, monkeypatch):
    data = Batch.from_data_list([random_graph(300, 6.0), path(90), path(1), path(90)])
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    for norm in ("sym", None):
        wanted = AddLaplacianEncoding(12, norm)(data)
        monkeypatch.setattr(spectral, "DENSE_NODES", 10)
        if way != "both":
            monkeypatch.setattr(spectral, "_lanczos", failing)
        if way == "dense":
            monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
        found = AddLaplacianEncoding(12, norm)(data)
        monkeypatch.undo()
        torch.testing.assert_close(found.laplacian_values, wanted.laplacian_values, rtol=0, atol=1e-6)
        (lap,) = laplacian_reference(joined(data), norm)
        vectors, values = found.laplacian_vectors.double(), found.laplacian_values[0].double()
        torch.testing.assert_close(lap @ vectors, vectors * values, rtol=0, atol=1e-5)
        torch.testing.assert_close(vectors.t() @ vectors, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-5)


def failing(*args):
    raise spectral.ArpackError(-9999)


def test_a_graph_beyond_all_ways_says_so(monkeypatch):
    for name, value in (("DENSE_NODES", 10), ("FALLBACK_NODES", 20), ("_lanczos", failing)):
        monkeypatch.setattr(spectral, name, value)
    monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
    with pytest.raises(RuntimeError, match="component of 90 nodes"):
        AddLaplacianEncoding(3)(path(90))


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


def test_an_estimate_does_not_depend_on_other_graphs():
    graphs = [path(12), path(11), random_graph(20)]
    for transform in (
        AddRandomWalkEncoding([2, 3], method="estimate", tol=0.3),
        AddHeatDiagonalEncoding([1.0], method="estimate", tol=0.3),
    ):
        key = "random_walk_diagonal" if isinstance(transform, AddRandomWalkEncoding) else "heat_diagonal"
        for alone, together in zip(graphs, transform.apply([graph.clone() for graph in graphs])):
            assert torch.equal(transform(alone.clone())[key], together[key])


@pytest.mark.parametrize("norm", [None, "sym", "rw"])
def test_one_way_edges_count_in_both_directions(norm):
    data = CASES["random directed"]
    both = Data(edge_index=to_undirected(data.edge_index), num_nodes=data.num_nodes)
    for transform in (AddLaplacianEncoding(5, norm), AddHeatDiagonalEncoding([1.0])):
        mine, theirs = transform(data.clone()), transform(both.clone())
        key = "laplacian_values" if isinstance(transform, AddLaplacianEncoding) else "heat_diagonal"
        assert torch.equal(mine[key], theirs[key])


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


@each_case
def test_heat_diagonals(data):
    found = AddHeatDiagonalEncoding(TIMES)(data).heat_diagonal.double()
    (lap,) = laplacian_reference(joined(data), None)
    values, vectors = torch.linalg.eigh(lap)
    keep = values > 1e-8
    decay = torch.exp(-values[keep, None] * torch.tensor(TIMES, dtype=torch.float64))
    torch.testing.assert_close(found, vectors[:, keep].square() @ decay, rtol=0, atol=5e-6)


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
    found = added(AddShortestPathBias(pairs=False), random_graph(9000, 2.0))
    assert set(found) == {"shortest_path_in_degree", "shortest_path_out_degree"}


@each_encoding
def test_many_graphs_at_once_give_what_one_does(transform):
    graphs = [data for data in CASES.values() if data is not GRAPHS["weighted"]]
    graphs = [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in graphs] + [random_graph(25)]
    before = [list(graph.keys()) for graph in graphs]
    together = transform.apply(graphs)
    assert [list(graph.keys()) for graph in graphs] == before
    for data, found in zip(graphs, together):
        alone = added(transform, data)
        assert set(alone) == set(found.keys()) - set(data.keys())
        for key, value in alone.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6, equal_nan=True)
    collated = Batch.from_data_list(together)
    pairs = sum(data.num_nodes**2 for data in graphs)
    for key in alone:
        rows = {"pair": pairs}.get(key.split("_")[0], len(graphs) if key.endswith("_error") else collated.num_nodes)
        assert collated[key].size(0) == rows


@pytest.mark.parametrize("transform", ALL[3:], ids=str)
def test_encodings_follow_a_relabelling(transform):
    data, perm = CASES["random directed"], torch.randperm(40)
    moved = added(transform, permute(data, perm))
    for key, value in added(transform, data).items():
        if key.startswith("pair_"):
            value = value.view(40, 40, -1)[perm][:, perm].reshape(moved[key].shape)
        elif not key.endswith("_error"):
            value = value[perm]
        torch.testing.assert_close(moved[key], value, rtol=0, atol=5e-5)


@each_encoding
def test_names_keep_two_settings_apart(transform):
    other = type(transform)(**{**vars(transform), "name": "other"})
    first, second = added(transform, CASES["path"]), added(other, CASES["path"])
    assert not set(first) & set(second)
    for (key, value), (other_key, other_value) in zip(first.items(), second.items()):
        assert other_key == key.replace(transform.name, "other")
        torch.testing.assert_close(value, other_value, equal_nan=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddLaplacianEncoding(0), "at least 1"),
        (lambda: AddLaplacianEncoding(3, "none"), "'sym', 'rw' or None"),
        (lambda: AddLaplacianEncoding(3, eigvec_norm="L3"), "one of L1"),
        (lambda: AddLaplacianEncoding(name="edge"), "collation reads"),
        (lambda: AddRandomWalkEncoding([]), "at least one"),
        (lambda: AddRandomWalkEncoding([0, 1]), "≥ 1"),
        (lambda: AddRandomWalkEncoding([1.5]), "whole numbers"),
        (lambda: AddRandomWalkEncoding([1], method="fast"), "'method' must be one of auto, exact, estimate"),
        (lambda: AddRandomWalkEncoding([1], tol=0.0), "random vectors"),
        (lambda: AddHeatDiagonalEncoding([-1.0]), "≥ 0"),
        (lambda: AddShortestPathBias(1), "at least 2"),
        (lambda: AddShortestPathBias(2**15), r"below 32768 \(got 32768\)"),
        (lambda: AddShortestPathBias(paths=True, pairs=False), "need 'pairs'"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddRandomWalkEncoding(8), r"'steps' must be a list of numbers \(got 8\); .* range\(1, 9\)"),
        (lambda: AddRelativeWalkEncoding(3), r"'steps' must be a list of numbers \(got 3\); .* range\(0, 4\)"),
        (lambda: AddRandomWalkEncoding([1], method="estimate", seed=None), r"'seed' must be an integer \(got None\)"),
        (lambda: AddHeatDiagonalEncoding([1.0], seed=None), r"'seed' must be an integer \(got None\)"),
    ],
)
def test_settings_of_a_wrong_type(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_bad_graphs():
    negative = Data(edge_index=torch.tensor([[0], [1]]), edge_weight=torch.tensor([-1.0]), num_nodes=2)
    with pytest.raises(ValueError, match=r"weights ≥ 0 \(got -1"):
        AddRandomWalkEncoding([1])(negative)
    with pytest.raises(ValueError, match="contains node 5"):
        AddLaplacianEncoding()(Data(edge_index=torch.tensor([[0], [5]]), num_nodes=2))
    with pytest.raises(ValueError, match="'edge_index' or 'adj_t'"):
        AddLaplacianEncoding()(Data(num_nodes=2))
    with pytest.raises(TypeError, match="HeteroData"):
        AddLaplacianEncoding()(HeteroData())
    with pytest.raises(ValueError, match=r"at most 8192 nodes of it \(got 9000"):
        AddElectrostaticEncoding()(path(9000))
    with pytest.raises(ValueError, match="one type per edge"):
        AddShortestPathBias(paths=True)(path(3))


def test_a_step_given_twice_has_its_column_twice():
    data, wanted = path(4), torch.tensor([0.375, 0.6875, 0.6875, 0.375])
    for method in ("exact", "estimate"):
        transform = AddRandomWalkEncoding([4, 2, 4], method=method, tol=0.01)
        found = transform(data).random_walk_diagonal
        assert torch.equal(found[:, 0], found[:, 2])
        torch.testing.assert_close(found[:, 0], wanted, rtol=0, atol=1e-6 if method == "exact" else 0.03)


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
    estimated = AddHeatDiagonalEncoding([50.0], method="estimate", tol=0.02)(weak.clone())
    gap = (estimated.heat_diagonal.double() - wanted).abs()
    assert (gap < 5 * estimated.heat_error.double() + 1e-6).all()


@pytest.mark.parametrize(
    "transform",
    [AddElectrostaticEncoding(), AddLaplacianEncoding(2), AddRelativeWalkEncoding([1]), AddShortestPathBias()],
)
def test_a_batch_is_not_read_as_one_graph(transform):
    name = type(transform).__name__
    with pytest.raises(ValueError, match=f"{name} would read a batch as one graph: apply it to each graph, before"):
        transform(Batch.from_data_list([path(3), path(4)]))
    transform(Batch.from_data_list([path(3)]))
