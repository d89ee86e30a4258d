"""Edges of weight 0, and weights near both ends of the floating-point range."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.ops import sample_walks
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import (
    AddElectrostaticEncoding,
    AddHeatDiagonalEncoding,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRandomWalks,
    AddRelativeWalkEncoding,
    AddShortestPathBias,
)
from tests.transforms.encoding_cases import added

PAIRS = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), num_nodes=4)
"""Two components, which `BRIDGED` joins by an edge of weight 0."""
BRIDGED = Data(
    edge_index=torch.cat([PAIRS.edge_index, torch.tensor([[1, 2], [2, 1]])], 1),
    edge_weight=torch.tensor([1.0, 1, 1, 1, 0, 0]),
    num_nodes=4,
)
INVARIANT = [AddLaplacianEncoding(3), AddLaplacianEncoding(3, "rw"), AddRandomWalkEncoding([1, 2, 5])]
INVARIANT += [AddRelativeWalkEncoding([1, 3]), AddRandomWalks(seed=0)]
DIFFUSIONS = [*INVARIANT, AddLaplacianEncoding(3, None), AddHeatDiagonalEncoding([0.5]), AddElectrostaticEncoding()]


def weighted(factor, dtype=torch.float64):
    data = GRAPHS["weighted"].clone()
    data.edge_weight = data.edge_weight.to(dtype) * factor
    return data


@pytest.mark.parametrize("transform", DIFFUSIONS, ids=lambda transform: repr(transform)[:40])
def test_an_edge_of_weight_zero_connects_nothing(transform):
    bridged, apart = added(transform, BRIDGED), added(transform, PAIRS)
    assert bridged.keys() == apart.keys()
    for key, value in apart.items():
        torch.testing.assert_close(bridged[key], value, msg=key)


def test_walkers_do_not_take_an_edge_of_weight_zero():
    settings = {"num_walks": 50, "max_length": 3}
    for weight, transition in ((BRIDGED.edge_weight, None), (BRIDGED.edge_weight, torch.rand(6) + 0.1)):
        table = sample_walks(BRIDGED.edge_index, 4, edge_weight=weight, transition=transition, **settings)
        assert ((table.index[0] < 2) == (table.index[1] < 2)).all()
    cancelling = torch.cat([BRIDGED.edge_index, torch.tensor([[1], [2]])], 1)  # 1 → 2 has weights 1 and -1
    weight = torch.tensor([1.0, 1, 1, 1, 1, 0, -1])
    table = sample_walks(cancelling, 4, edge_weight=weight, **settings)
    assert ((table.index[0] < 2) == (table.index[1] < 2)).all()


def test_shortest_paths_count_hops_along_edges_of_weight_zero():
    found = AddShortestPathBias(5)(BRIDGED)
    assert found.pair_shortest_path.view(4, 4)[0].tolist() == [0, 1, 2, 3]
    assert found.shortest_path_in_degree.tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("factor", [1e-300, 1e300])
@pytest.mark.parametrize("transform", INVARIANT, ids=lambda transform: repr(transform)[:40])
def test_a_common_factor_of_the_weights_cancels(transform, factor):
    wanted, found = added(transform, weighted(1.0)), added(transform, weighted(factor))
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("factor", [1e-16, 1e16])
def test_electrostatic_potentials_scale_with_the_weights(factor):
    wanted = AddElectrostaticEncoding()(weighted(1.0)).electrostatic
    found = AddElectrostaticEncoding()(weighted(factor)).electrostatic
    torch.testing.assert_close(found.double() * factor, wanted.double(), rtol=1e-5, atol=1e-6)
    data = PAIRS.clone()
    data.edge_weight = torch.tensor([1.0, 1, factor, factor], dtype=torch.float64)  # each component its own scale
    found, wanted = (AddElectrostaticEncoding()(graph).electrostatic for graph in (data, PAIRS))
    torch.testing.assert_close(found[:2, 6:], wanted[:2, 6:])
    torch.testing.assert_close(found[2:, 6:].double() * factor, wanted[2:, 6:].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("factor", "largest"), [(1e-50, r"1.38e-50"), (1e300, r"1.38e\+300")])
def test_potentials_beyond_float32_are_refused(factor, largest):
    with pytest.raises(ValueError, match=rf"beyond float32 .* {largest}\); multiply the weights"):
        AddElectrostaticEncoding()(weighted(factor))
    loops = Data(edge_index=torch.tensor([[0, 1, 2], [0, 2, 1]]), num_nodes=3)  # node 0 has no potential
    assert (AddElectrostaticEncoding()(loops).electrostatic[0, :3] == 0).all()


@pytest.mark.parametrize("weight", [1e9, 1e300])
def test_heat_that_would_need_an_unbounded_series_is_refused(weight):
    data = GRAPHS["path"].clone()
    data.edge_weight = torch.full((6,), weight, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'time' 0\.5 needs a polynomial .* normalise the edge weights"):
        AddHeatDiagonalEncoding([0.5])(data)


def test_heat_of_large_and_small_weights():
    wanted = AddHeatDiagonalEncoding([0.5])(weighted(1.0)).heat_diagonal
    for factor in (1e-300, 1e-9, 1e3):
        found = AddHeatDiagonalEncoding([0.5 / factor])(weighted(factor)).heat_diagonal
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
