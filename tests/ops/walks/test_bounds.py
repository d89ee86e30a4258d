"""Bounds on errors and non-zeros of graph random features hold on drawn walks.

Reference: Reid et al. 2024, arXiv:2410.03462, Theorem 3.1 and Lemma 3.2, for independent walkers.
"""

from math import ceil, expm1, log, log1p, sqrt

import pytest
import torch

from pyg_topomask.ops import sample_walks
from pyg_topomask.testing import GRAPHS, dense_adjacency
from tests.ops.walks.draws import draw_many

MODULATION = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def error_bound(num_walks, prob, scale):
    """The error that an entry exceeds with probability at most ``prob``."""
    return (2 * num_walks - 1) * scale**2 * sqrt(2 * log(2 / prob) / num_walks**3)


def row_nonzeros(num_walks, halt_prob, prob):
    """Upper bound on the non-zeros in a row of features, which holds with probability ``1 - prob``."""
    return 1 + num_walks * (ceil(log(-expm1(log1p(-prob) / num_walks)) / log1p(-halt_prob)) - 1)


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
    scale = 1 + 0.5 * (0.8 / 0.7) + 0.25 * (0.8 / 0.7) ** 2  # the sum of |f_k| (max |W_ij| deg_i / (1 - p_halt))^k
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
