"""Theorem 2 of k-MIP: numbers tell apart what they should, and errors vanish with k and with the cells."""

import itertools

import torch


def test_numbers_tell_apart_every_token_in_every_set_of_different_tokens(script):
    sets = list(itertools.combinations(range(5), 3))
    order = torch.tensor(list(itertools.permutations(range(3))))
    levels = torch.tensor(sets, dtype=torch.float64)[:, order] / 5  # [sets, permutations, tokens]
    numbers = script.told_apart(*script.tokens(levels.flatten(0, 1))[:1], 5, script.tokens(levels.flatten(0, 1))[1])
    back = numbers.view(len(sets), 6, 3).gather(2, order.argsort(1).expand(len(sets), 6, 3))
    torch.testing.assert_close(back, back[:, :1].expand_as(back), rtol=0, atol=1e-9)  # the order does not matter
    spread = back[:, 0].flatten().sort().values.diff()
    assert spread.min() > 0.19


def test_tokens_are_rounded_to_their_cell_by_ramps(script):
    x = torch.rand(1000, 1, dtype=torch.float64)
    assert torch.equal(script.rounded(x, 16), (x * 16).floor() / 16)


@torch.no_grad()
def test_errors_vanish(script):
    target, samples = script.transformer(), torch.rand(500, 3, dtype=torch.float64)
    coarse, fine = (script.approximation(cells, target, samples)["error"] for cells in (4, 16))
    assert fine < coarse / 1.5
    errors = [row["error"] for row in script.layer_errors(2.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12
