"""Settings and graphs that transforms refuse, and the errors that say why."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from pyg_topomask.testing import GRAPHS, permute
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddExpanderEdges,
    AddGridShape,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRandomWalks,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
    AddTreeOrder,
)
from tests.transforms.encoding_cases import grid, path

EDGE = torch.tensor([[0], [1]])
SWAPPED, CIRCLE = permute(grid(3, 3), torch.tensor([0, 1, 2, 4, 3, 5, 6, 7, 8])), from_networkx(nx.cycle_graph(4))


def weighted(*values, dtype=None):
    return Data(edge_index=EDGE, edge_weight=torch.tensor(values, dtype=dtype), num_nodes=3)


def far(value):
    return AddTreeOrder(length="far")(Data(edge_index=EDGE, far=torch.tensor([value]), num_nodes=2))


REFUSED = [
    (lambda: AddLaplacianEncoding(0), ValueError, "at least 1"),
    (lambda: AddLaplacianEncoding(3, "none"), ValueError, "one of sym, rw, None"),
    (lambda: AddLaplacianEncoding(3, eigvec_norm="L3"), ValueError, "one of L1"),
    (lambda: AddLaplacianEncoding()(Data(num_nodes=2)), ValueError, "'edge_index' or 'adj_t'"),
    (lambda: AddRandomWalkEncoding([]), ValueError, "at least one"),
    (lambda: AddRandomWalkEncoding([0, 1]), ValueError, "≥ 1"),
    (lambda: AddRandomWalkEncoding([1.5]), ValueError, "whole numbers"),
    (lambda: AddRandomWalkEncoding(8), TypeError, r"'steps' must be a list of numbers \(got 8\); .* range\(1, 9\)"),
    (lambda: AddRandomWalkEncoding([1])(weighted(-1.0)), ValueError, r"weights ≥ 0 \(got -1"),
    (lambda: AddRelativeWalkEncoding(3), TypeError, r"'steps' must be a list of numbers \(got 3\); .* range\(0, 4\)"),
    (lambda: AddHeatDiagonalEncoding([-1.0]), ValueError, "≥ 0"),
    (lambda: AddShortestPathBias(1), ValueError, "at least 2"),
    (lambda: AddShortestPathBias(2**15), ValueError, r"below 32768 \(got 32768\)"),
    (lambda: AddShortestPathBias(paths=True, pairs=False), ValueError, "need 'pairs'"),
    (lambda: AddShortestPathBias(paths=True)(path(3)), ValueError, "one type per edge"),
    (lambda: AddElectrostaticEncoding()(path(9000)), ValueError, r"at most 8192 nodes of it \(got 9000"),
    (lambda: AddExpanderEdges(degree=0), ValueError, r"'degree' must be at least 1 \(got 0\)"),
    (lambda: AddExpanderEdges(algorithm="x"), ValueError, r"one of Hamiltonian, Random-d, Random-d-2 \(got 'x'\)"),
    (lambda: AddGridShape(()), ValueError, "size of each axis"),
    (lambda: AddGridShape((0, 3)), ValueError, "'grid_shape' must be at least 1"),
    (lambda: AddGridShape()(GRAPHS["star"]), ValueError, r"of 5 nodes is not a grid.*differ by \[1, 2, 3, 4\]"),
    (lambda: AddGridShape()(GRAPHS["two_parts"]), ValueError, "not the grid"),
    (lambda: AddGridShape()(CIRCLE), ValueError, r"differ by \[1, 3\]"),
    (lambda: AddGridShape()(SWAPPED), ValueError, "not a"),
    (lambda: AddGridShape((4, 3))(grid(3, 4)), ValueError, r"not the grid \[4, 3\].*lacks link 0 – 3"),
    (lambda: AddGridShape((12,))(grid(3, 4)), ValueError, "has the additional link 0 – 4|lacks link 3 – 4"),
    (lambda: AddGridShape((3, 5))(grid(3, 4)), ValueError, r"12 nodes, but the grid \[3, 5\] has 15"),
    (lambda: AddGridShape()(Data(edge_index=EDGE[:, :0], num_nodes=3)), ValueError, "differ by nothing"),
    (lambda: AddRandomWalks(max_length=2**15), ValueError, r"'max_length' must be below 32768.*\(got 32768\)"),
    (lambda: AddRandomWalks(halt_prob=0.3, lengths="uniform"), ValueError, "'lengths' replaces 'halt_prob'"),
    (lambda: AddRandomWalks(scheme="levy"), ValueError, "got 'levy'"),
    (lambda: AddRandomWalks(name="my walk"), ValueError, "identifier"),
    (lambda: AddRandomWalks(name="walk_key"), ValueError, r"must not end in '_key' .*\(got 'walk_key'\)"),
    (lambda: AddRandomWalks(name="walk_table2"), ValueError, r"must not end in .* '_table1'.*\(got 'walk_table2'\)"),
    (lambda: AddRandomWalks(num_tables=0), ValueError, "'num_tables' must be at least 1"),
    (lambda: AddRandomWalks(1, diagonal="corrected"), ValueError, "needs walkers.*independent of each other"),
    (lambda: AddRandomWalks(diagonal="both"), ValueError, "'diagonal' must be one of independent, corrected, shared"),
    (lambda: AddRandomWalks()(Data(x=torch.ones(3, 1))), ValueError, "no edges; it needs 'edge_index' or 'adj_t'"),
    (lambda: AddRandomWalks()(Data(edge_index=EDGE.float(), num_nodes=3)), TypeError, "must hold integers"),
    (lambda: AddRandomWalks()(weighted(torch.nan)), ValueError, "'edge_weight' holds NaN"),
    (lambda: AddRandomWalks()(weighted(-1.0)), ValueError, "strengths ≥ 0.*negative"),
    (lambda: AddRandomWalks()(weighted(1.0, 1.0)), ValueError, r"one number per edge, \[1\]"),
    (lambda: AddRandomWalks()(weighted(1.0, dtype=torch.cfloat)), TypeError, "real numbers"),
    (lambda: AddTreeOrder("depth_first"), ValueError, "'method' must be one of breadth_first, minimum"),
    (lambda: AddTreeOrder("minimum"), ValueError, "'minimum' needs 'length'"),
    (lambda: AddTreeOrder(length="far")(GRAPHS["path"]), ValueError, r"'far' must have one length per edge, \[6\]"),
    (lambda: far(-1.0), ValueError, r"'far' must be finite and at least 0 \(got -1\.0\)"),
    (lambda: far(torch.inf), ValueError, r"'far' must be finite and at least 0 \(got inf\)"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_bad_settings_and_graphs_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
