"""What all encodings have in common: many graphs at once, relabelling, names, and errors."""

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import to_undirected

from pyg_topomask.testing import GRAPHS, permute
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)
from tests.transforms.encoding_cases import CASES, added, path, random_graph

ALL = [
    AddLaplacianEncoding(6),
    AddLaplacianEncoding(6, "rw", "abs-max"),
    AddLaplacianEncoding(3, None, "wavelength"),
    AddRandomWalkEncoding([1, 2, 3, 5, 8]),
    AddHeatDiagonalEncoding([0.0, 0.5, 1.0, 7.0]),
    AddElectrostaticEncoding(),
    AddShortestPathBias(4),
    AddRelativeWalkEncoding([0, 1, 4]),
]
each_encoding = pytest.mark.parametrize("transform", ALL, ids=str)


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


@pytest.mark.parametrize("norm", [None, "sym", "rw"])
def test_one_way_edges_count_in_both_directions(norm):
    data = CASES["random directed"]
    both = Data(edge_index=to_undirected(data.edge_index), num_nodes=data.num_nodes)
    for transform in (AddLaplacianEncoding(5, norm), AddHeatDiagonalEncoding([1.0])):
        mine, theirs = transform(data.clone()), transform(both.clone())
        key = "laplacian_values" if isinstance(transform, AddLaplacianEncoding) else "heat_diagonal"
        assert torch.equal(mine[key], theirs[key])


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


@pytest.mark.parametrize(
    "transform",
    [AddElectrostaticEncoding(), AddLaplacianEncoding(2), AddRelativeWalkEncoding([1]), AddShortestPathBias()],
)
def test_a_batch_is_not_read_as_one_graph(transform):
    name = type(transform).__name__
    with pytest.raises(ValueError, match=f"{name} would read a batch as one graph: apply it to each graph, before"):
        transform(Batch.from_data_list([path(3), path(4)]))
    transform(Batch.from_data_list([path(3)]))
