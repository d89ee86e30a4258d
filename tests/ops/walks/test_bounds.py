"""Bounds on errors and non-zeros of graph random features hold on drawn walks, and are those of the equations.

Reference: Reid et al. 2024, arXiv:2410.03462, Theorem 3.1 and Lemma 3.2, for independent walkers. A number of draws
above a bound is refused if its probability is below one in a million.
"""

from math import exp

import pytest
import torch
from scipy.stats import binom

from pyg_topomask.ops import error_bound, error_scale, row_nonzeros, sample_walks
from pyg_topomask.testing import GRAPHS, dense_adjacency
from tests.ops.walks.draws import draw_many

F, G = torch.tensor([[1.0, -0.5, 0.25], [0.5, 1.0, 0.0]], dtype=torch.float64)
DRAWS, SURE = 10_000, 1 - 1e-6


def scale_of(f, tail):
    """For the star, whose hub has 4 neighbours: |W_ij| deg_i is at most 0.2 * 4."""
    return sum(abs(float(a)) * 0.8**k / tail[k] for k, a in enumerate(f))


@pytest.mark.parametrize("walk", [{"halt_prob": 0.3}, {"halt_prob": 0.0, "lengths": [0.2, 0.5, 0.3]}])
@pytest.mark.parametrize("prob", [0.05, 0.3])
@pytest.mark.parametrize("num_walks", [1, 2, 4])
def test_an_entry_exceeds_the_bound_in_at_most_its_share_of_draws(num_walks, prob, walk):
    """Of one table off the diagonal, of two tables everywhere, and of two functions."""
    data = GRAPHS["star"].clone()
    data.edge_weight = torch.full((8,), 0.2, dtype=torch.float64)
    adj, tail = dense_adjacency(data), [1, 0.8, 0.3] if "lengths" in walk else [1, 0.7, 0.49]
    loads = [draw_many(data, DRAWS, seed, num_walks=num_walks, max_length=2, **walk)[0] for seed in (0, 1)]
    f1, g1, g2 = (torch.einsum("k,dkij->dij", f, x) for f, x in ((F, loads[0]), (G, loads[0]), (G, loads[1])))
    phi, psi = (f[0] * torch.eye(5) + f[1] * adj + f[2] * adj @ adj for f in (F, G))
    off = ~torch.eye(5, dtype=torch.bool)
    scales = [error_scale(data.edge_index, 5, f, tail, data.edge_weight) for f in (F, G)]
    assert scales == pytest.approx([scale_of(f, tail) for f in (F, G)])
    geometric = (scales[0] * scales[1]) ** 0.5
    for estimate, exact, scale, some in (
        (f1 @ f1.mT, phi @ phi.T, scales[0], off),
        (f1 @ g1.mT, phi @ psi.T, geometric, off),
        (f1 @ g2.mT, phi @ psi.T, geometric, off | True),
    ):
        error = (estimate - exact).abs()[:, some]
        seen = (error > error_bound(num_walks, prob, scale)).sum(0)
        assert (seen <= binom.ppf(SURE, DRAWS, prob)).all()
        assert error.max() > 0.05  # there is something to bound


def test_bounds_invert_the_theorem():
    for n, prob, c in ((1, 0.05, 1.0), (2, 0.3, 1.7), (50, 1e-6, 0.4)):
        t = error_bound(n, prob, c)
        assert 2 * exp(-(t**2) * n**3 / (2 * (2 * n - 1) ** 2 * c**4)) == pytest.approx(prob)
    assert error_bound(2, 0.1, 1.0) > error_bound(1, 0.1, 1.0) > error_bound(3, 0.1, 1.0)  # 1, 0.89 and 1.08


@pytest.mark.parametrize(
    ("num_walks", "halt_prob", "prob"), [(1, 0.9, 0.2), (1, 0.5, 0.1), (4, 0.5, 0.1), (8, 0.2, 0.3), (100, 0.1, 1e-3)]
)
def test_rows_have_no_more_non_zeros_than_the_bound(num_walks, halt_prob, prob):
    """Walkers on long lines, where each hop is a new node; and the smallest length that the probability allows."""
    size, lines, bound = 200, 400, row_nonzeros(num_walks, halt_prob, prob)
    line = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
    fan = torch.cat([line + branch * size for branch in range(lines)], 1)
    table = sample_walks(
        fan, lines * size, num_walks=num_walks, max_length=150, halt_prob=halt_prob, start=torch.arange(lines) * size,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert (torch.bincount(table.index[0] // size) > bound).sum() <= binom.ppf(SURE, lines, prob)
    longest = (bound - 1) // num_walks
    some_longer = [1 - (1 - (1 - halt_prob) ** (hops + 1)) ** num_walks for hops in (longest, longest - 1)]
    assert some_longer[0] <= prob < some_longer[1]
    assert row_nonzeros(num_walks, halt_prob, prob, max_length=2) == min(bound, 1 + 2 * num_walks)
    assert row_nonzeros(num_walks, 0.0, prob, max_length=3) == 1 + 3 * num_walks


def test_a_graph_without_edges_has_the_scale_of_walks_that_stay():
    assert error_scale(torch.empty(2, 0, dtype=torch.long), 3, -F, [1, 0.5, 0.25]) == 1


@pytest.mark.parametrize(("call", "message"), [
    (lambda: error_bound(4, 0.0, 1.0), r"'prob' must be a probability in \(0, 1\) \(got 0.0\)"),
    (lambda: error_bound(0, 0.1, 1.0), "'num_walks' must be at least 1"),
    (lambda: row_nonzeros(4, 0.0, 0.1), "end only at 'max_length'"),
    (lambda: row_nonzeros(4, 1.0, 0.1), "per-step probability"),
    (lambda: error_scale(torch.zeros(2, 0).long(), 2, torch.ones(1, 2), [1, 1]), r"\[K \+ 1\].*got \[1, 2\]"),
    (lambda: error_scale(torch.zeros(2, 0).long(), 2, F, [1, 0.5]), r"got \[3\] and \[1, 0.5\]"),
    (lambda: error_scale(torch.zeros(2, 0).long(), 2, F, [1, 0.5, 0]), "probabilities above 0"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
