"""Pairs within a distance, in compiled code and plain torch, and the share of a mask's mass by distance."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import HopMask
from pyg_topomask.operators import DenseOperator, HeadStackOperator, OnesOperator, PowerSeriesOperator
from pyg_topomask.ops.hops import hop_pairs
from pyg_topomask.ops.reach import reach
from pyg_topomask.transforms import AddHops
from pyg_topomask.typing import PerformanceWarning
from tests.distances import dense_distances
from tests.threads import assert_threads_change_nothing


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(
    ("num_nodes", "num_edges", "weighted", "width"),
    [(40, 70, False, 1.0), (40, 70, False, 2.0), (40, 90, True, 0.25), (5, 0, False, 1.0), (0, 0, False, 1.0)],
)
def test_pairs_equal_all_shortest_paths(monkeypatch, native, num_nodes, num_edges, weighted, width):
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    edge_index = torch.randint(0, max(num_nodes, 1), (2, num_edges))
    length = torch.rand(num_edges) + 0.01 if weighted else None
    index, hops = hop_pairs(edge_index, num_nodes, 5, length, width)
    wanted = np.round(dense_distances(edge_index, num_nodes, length).numpy() / width)
    found = np.full((num_nodes, num_nodes), np.inf)
    found[tuple(index.numpy())] = hops.numpy()
    np.testing.assert_array_equal(found, np.where(wanted <= 5, wanted, np.inf))
    key = index[0] * num_nodes + index[1]
    assert bool((key.diff() > 0).all())


def test_threads_change_nothing():
    edge_index = torch.randint(0, 5000, (2, 9000))
    assert_threads_change_nothing(lambda: hop_pairs(edge_index, 5000, 3))


def test_lengths_of_edges_and_what_is_refused():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, bond=torch.tensor([0.4, 1.2]))
    found = AddHops(3, length="bond", width=0.5)(data)
    assert found.hop_index.tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]
    assert found.hop_length.tolist() == [0, 1, 3, 0, 2, 0]
    for settings, message in (({"width": 0.0}, "'width' must be"), ({"max_hops": 2**15}, "must be below 32768")):
        with pytest.raises(ValueError, match=message):
            AddHops(**settings)
    with pytest.raises(ValueError, match="'length' must be 0 to 2"):
        HopMask(max_hops=2)(AddHops(3)(Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)))
    with pytest.raises(ValueError, match="were drawn for"):
        HopMask()(AddHops()(data).subgraph(torch.tensor([0, 1])))


def test_reach_is_the_share_of_the_mass_by_distance():
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=4)  # a path, and one node apart
    found = reach(OnesOperator(torch.zeros(4, dtype=torch.long)), data, 1)
    torch.testing.assert_close(found, torch.tensor([4, 4, 8], dtype=torch.float64) / 16)
    mask = HopMask(heads=2, max_hops=2)
    found = reach(mask, AddHops(2)(data), 2, num_rows=4)
    assert found.shape == (2, 4)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, dtype=torch.float64))
    assert found[:, -1].eq(0).all()
    signed = DenseOperator(-torch.eye(4) + torch.eye(4).roll(1, 0))
    torch.testing.assert_close(reach(signed, data, 1)[0], torch.tensor(0.5, dtype=torch.float64))
    triangle = Data(edge_index=torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]]), num_nodes=3)
    series = PowerSeriesOperator(triangle.edge_index, 3, torch.tensor([1.0, -1.0, 0.5]))  # 2 and twice -1/2 in a row
    torch.testing.assert_close(reach(series, triangle, 0), torch.tensor([2, 1], dtype=torch.float64) / 3)
    away = PowerSeriesOperator(data.edge_index, 4, torch.tensor([0.0, 1.0]))  # the node apart has no entries
    torch.testing.assert_close(reach(away, data, 1), torch.tensor([0, 1, 0], dtype=torch.float64))
    nothing, empty = (
        OnesOperator(torch.zeros(0, dtype=torch.long)),
        Data(edge_index=data.edge_index[:, :0], num_nodes=0),
    )
    assert reach(nothing, empty).sum() == 0
    assert reach(HeadStackOperator([nothing] * 2), empty, 1).tolist() == [[0.0] * 3] * 2
    with pytest.raises(ValueError, match="for 4 nodes, but the graph has 3"):
        reach(signed, Data(edge_index=data.edge_index, num_nodes=3))


def test_reach_asks_for_a_mask_and_edges():
    with pytest.raises(TypeError, match="that of unmasked attention is OnesOperator"):
        reach(None, Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=2))
    with pytest.raises(TypeError, match=r"edges must be .* \(got NoneType\)"):
        reach(DenseOperator(torch.eye(2)), Data(num_nodes=2))


def test_a_large_graph_with_nearly_all_pairs_is_said():
    ring = torch.stack([torch.arange(1001), torch.arange(1001).roll(1)])
    star = torch.stack([torch.zeros(1001, dtype=torch.long), torch.arange(1001)])
    AddHops(8)(Data(edge_index=ring, num_nodes=1001))
    with pytest.warns(PerformanceWarning, match=r"AddHops\(max_hops=2\) lists 1,002,001 of the 1,002,001 pairs"):
        AddHops(2)(Data(edge_index=torch.cat([star, star.flip(0)], 1), num_nodes=1001))
