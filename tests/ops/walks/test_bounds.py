"""The bounds hold on drawn walks."""

import pytest
import torch

from pyg_topomask.ops import sample_walks
from pyg_topomask.ops.walks.bounds import error_bound, error_scale, row_nonzeros
from pyg_topomask.testing import GRAPHS, dense_adjacency
from tests.ops.walks.draws import draw_many

MODULATION = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


@pytest.mark.parametrize("prob", [0.05, 0.3])
@pytest.mark.parametrize("num_walks", [1, 4])
def test_an_entry_exceeds_the_bound_in_at_most_its_share_of_draws(num_walks, prob):
    data = GRAPHS["star"].clone()
    data.edge_weight = torch.full((8,), 0.2, dtype=torch.float64)
    adj = dense_adjacency(data)
    loads = draw_many(data, 10_000, num_walks=num_walks, max_length=2, halt_prob=0.3)[0]
    features = torch.einsum("k,dkij->dij", MODULATION, loads)
    exact = MODULATION[0] * torch.eye(5) + MODULATION[1] * adj + MODULATION[2] * adj @ adj
    error = ((features[:, 0] * features[:, 1]).sum(1) - exact[0] @ exact[1]).abs()
    scale = error_scale(data.edge_index, 5, MODULATION, (1, 0.7, 0.49), data.edge_weight)
    assert scale == pytest.approx(1 + 0.5 * (0.8 / 0.7) + 0.25 * (0.8 / 0.7) ** 2)
    assert (error > error_bound(num_walks, prob, scale)).double().mean() <= prob
    assert error.max() > 0.05  # there is something to bound


@pytest.mark.parametrize(
    ("num_walks", "halt_prob", "prob"), [(1, 0.9, 0.2), (1, 0.5, 0.1), (4, 0.5, 0.1), (8, 0.2, 0.3)]
)
def test_rows_have_no_more_non_zeros_than_the_bound(num_walks, halt_prob, prob):
    size = 60
    line = torch.stack([torch.arange(size - 1), torch.arange(1, size)])  # each hop is a new node
    fan = torch.cat([line + branch * size for branch in range(400)], 1)
    table = sample_walks(
        fan, 400 * size, num_walks=num_walks, max_length=40, halt_prob=halt_prob, start=torch.arange(400) * size,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    entries = torch.bincount(table.index[0] // size)
    bound = row_nonzeros(num_walks, halt_prob, prob)
    assert (entries > bound).double().mean() <= prob + 5 * (prob * (1 - prob) / 400) ** 0.5
    assert row_nonzeros(num_walks, halt_prob, prob, max_length=1) <= 1 + num_walks


def test_walks_that_never_halt_fill_rows_up_to_their_length():
    assert row_nonzeros(5, 0.0, 0.1, max_length=3) == 16
    assert error_scale(torch.empty(2, 0, dtype=torch.long), 3, MODULATION, (1, 0.5, 0.25)) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: error_bound(4, 0.0, 1.0), r"'prob' must be a probability in \(0, 1\) \(got 0.0\)"),
        (lambda: error_bound(0, 0.1, 1.0), "'num_walks' must be at least 1"),
        (lambda: row_nonzeros(4, 0.0, 0.1), "end only at 'max_length'"),
        (lambda: row_nonzeros(4, 1.0, 0.1), "per-step probability"),
        (lambda: error_scale(torch.zeros(2, 0).long(), 2, torch.ones(1, 2), (1, 0.9)), r"shape \[K \+ 1\]"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
