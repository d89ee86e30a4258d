"""The errors of estimated masks by the number of walks, from dense matrices."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask import nn, ops, testing
from pyg_topomask.nn.walk_errors import NUM_WALKS, walks_for
from pyg_topomask.transforms import AddRandomWalks
from tests.matrices import normalised_adjacency, power_series

DRAWS, RISK = 8, 0.05

F, G = torch.tensor([[1.2, -0.5, 0.3], [0.4, 0.7, 0.1]]).double()


def signed(mask):
    """The mask with ``F`` and ``G``; the second head has them in turn."""
    with torch.no_grad():
        for parameter, f in zip(mask.parameters(), (F, G)):
            parameter.copy_(f if parameter.dim() == 1 else torch.stack([f, F + G - f]))
    return mask


@pytest.mark.parametrize("name", ["weighted", "one_way"])
@pytest.mark.parametrize(
    ("settings", "walk", "functions", "bounded"),
    [
        ({}, {}, (F, F), True),
        ({"heads": 2, "key_modulation": True}, {"independent": False}, (G, F), True),
        ({"symmetric": False}, {"lengths": "uniform"}, (F, None), True),
        ({"positive": True}, {"scheme": "repelling"}, (F.abs(), F.abs()), False),
        ({"stitch": 2}, {"num_tables": 2}, (F, F), False),
    ],
)
def test_rows_are_those_of_dense_matrices(name, settings, walk, functions, bounded):
    data, head = testing.GRAPHS[name], settings.get("heads", 1) - 1
    mask = signed(nn.GRFMask(max_length=2, independent=walk.get("independent", True), **settings))
    rows = nn.walk_errors(mask, AddRandomWalks(6, 2, 0.4 if "lengths" not in walk else 0.5, seed=3, **walk), data, head)
    assert [row["walks"] for row in rows] == sorted([6, *NUM_WALKS])
    adj = testing.dense_adjacency(data)
    step, eye = normalised_adjacency(data), torch.eye(data.num_nodes, dtype=torch.bool)
    phi, psi = (eye.double() if f is None else power_series(step, f) for f in functions)
    exact = torch.linalg.matrix_power(phi @ psi.T, settings.get("stitch", 1))
    counted = (exact != 0) & ~eye
    degree = (adj != 0).sum(1, keepdim=True)
    tail = [1, 2 / 3, 1 / 3] if "lengths" in walk else [1, 0.6, 0.36]
    scales = [
        1 if f is None else float(sum(abs(a) * (step * degree).max() ** k / tail[k] for k, a in enumerate(f)))
        for f in functions
    ]
    for row in (rows[1], rows[2]):  # 4 and 6 walks
        transform, errors = AddRandomWalks(row["walks"], 2, 0.4 if "lengths" not in walk else 0.5, seed=3, **walk), []
        for epoch in range(DRAWS):
            transform.set_epoch(epoch)
            dense = mask(transform(data.clone())).to_dense().double()
            errors.append(((dense if dense.dim() == 2 else dense[head]) - exact)[counted].abs())
        errors = torch.cat(errors).detach()
        assert row["typical"] == pytest.approx(float(exact[counted].square().mean().sqrt()), rel=1e-5)
        assert row["error"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-4)
        assert (errors > row["quantile"] + 1e-5).double().mean() <= RISK
        assert (errors >= row["quantile"] - 1e-5).double().mean() >= RISK
        assert row["nonzeros"] <= data.num_nodes
        assert (row["bound"] is None) == (row["needed"] is None) == (not bounded)
        if bounded:
            wanted = ops.error_bound(row["walks"], RISK, (scales[0] * scales[1]) ** 0.5)
            assert row["bound"] == pytest.approx(wanted, rel=1e-4)
            assert row["bound"] > row["quantile"]
        assert (row["most"] is not None) == (bounded and "lengths" not in walk)
    by_number = {row["walks"]: row["error"] for row in rows}
    assert 5 < by_number[4] / by_number[256] < 13  # 8, as 1 / √n


def test_walks_on_one_relation_estimate_the_mask_of_its_edges():
    alone = testing.GRAPHS["two_parts"]
    other = torch.tensor([[0, 2, 5, 1], [4, 3, 1, 5]])
    both = Data(edge_index=torch.cat([other, alone.edge_index], dim=1), num_nodes=alone.num_nodes)
    both.edge_type = (torch.arange(both.num_edges) >= 4).long()
    wanted = nn.walk_errors(nn.GRFMask(), AddRandomWalks(seed=0), alone)
    assert nn.walk_errors(nn.GRFMask(), AddRandomWalks(seed=0, edge_type=1), both) == wanted


def test_the_number_of_walks_for_a_bound_is_the_least_one():
    for number in (1, 3, 17, 1000):
        assert walks_for(ops.error_bound(number, RISK, 1.3), 1.3, RISK) == number
    assert walks_for(ops.error_bound(2, RISK, 1.3), 1.3, RISK) == 1  # the bound of one walk is smaller
    assert walks_for(0.0, 1.3, RISK) is None


def test_a_mask_that_joins_no_nodes_has_no_errors():
    with pytest.raises(ValueError, match="joins no two nodes"):
        nn.walk_errors(nn.GRFMask(), AddRandomWalks(), testing.GRAPHS["single"])
