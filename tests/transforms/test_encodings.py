"""Encodings of directed graphs, and wrong settings."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)
from tests.transforms.encoding_cases import CASES, path

NEGATIVE = Data(edge_index=torch.tensor([[0], [1]]), edge_weight=torch.tensor([-1.0]), num_nodes=2)


@pytest.mark.parametrize("norm", [None, "sym", "rw"])
def test_one_way_edges_count_in_both_directions(norm):
    data = CASES["random directed"]
    both = Data(edge_index=to_undirected(data.edge_index), num_nodes=data.num_nodes)
    for transform in (AddLaplacianEncoding(5, norm), AddHeatDiagonalEncoding([1.0])):
        mine, theirs = transform(data.clone()), transform(both.clone())
        key = "laplacian_values" if isinstance(transform, AddLaplacianEncoding) else "heat_diagonal"
        assert torch.equal(mine[key], theirs[key])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddLaplacianEncoding(0), "at least 1"),
        (lambda: AddLaplacianEncoding(3, "none"), "'sym', 'rw' or None"),
        (lambda: AddLaplacianEncoding(3, eigvec_norm="L3"), "one of L1"),
        (lambda: AddRandomWalkEncoding([]), "at least one"),
        (lambda: AddRandomWalkEncoding([0, 1]), "≥ 1"),
        (lambda: AddRandomWalkEncoding([1.5]), "whole numbers"),
        (lambda: AddHeatDiagonalEncoding([-1.0]), "≥ 0"),
        (lambda: AddShortestPathBias(1), "at least 2"),
        (lambda: AddShortestPathBias(2**15), r"below 32768 \(got 32768\)"),
        (lambda: AddShortestPathBias(paths=True, pairs=False), "need 'pairs'"),
        (lambda: AddShortestPathBias(paths=True)(path(3)), "one type per edge"),
        (lambda: AddElectrostaticEncoding()(path(9000)), r"at most 8192 nodes of it \(got 9000"),
        (lambda: AddLaplacianEncoding()(Data(num_nodes=2)), "'edge_index' or 'adj_t'"),
        (lambda: AddRandomWalkEncoding([1])(NEGATIVE), r"weights ≥ 0 \(got -1"),
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
    ],
)
def test_settings_of_a_wrong_type(make, message):
    with pytest.raises(TypeError, match=message):
        make()
