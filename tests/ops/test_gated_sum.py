"""Gated sums over edges against the formula, in values and all gradients."""

import pytest
import torch

from pyg_topomask.ops.gated_sum import gated_sum
from pyg_topomask.testing import GRAPHS
from tests.ops.compare import with_gradients

NAMES = [*GRAPHS]
MULTI = torch.tensor([[0, 0, 2, 1, 1, 3], [1, 1, 1, 0, 1, 3]])  # a double edge, self-loops, unsorted


def draw(num_nodes, num_edges, channels=3):
    sizes = (num_nodes, 4 * channels), (num_edges, channels)
    nodes, edge = (torch.randn(size, dtype=torch.float64) for size in sizes)
    return [x.requires_grad_() for x in (nodes, edge, torch.rand(num_edges, 1, dtype=torch.float64))]


def gated_sum_reference(nodes, edge, edge_index, scale=None):
    own, value, target, source = nodes.chunk(4, dim=1)
    out, e = [], []
    for number, (j, i) in enumerate(edge_index.t().tolist()):
        e.append(target[i] + source[j] + edge[number])
    for i in range(value.size(0)):
        above, below = torch.zeros_like(value[0]), torch.full_like(value[0], 1e-6)
        for number, (j, to) in enumerate(edge_index.t().tolist()):
            if to == i:
                gate = 1 / (1 + torch.exp(-e[number])) * (1 if scale is None else scale[number])
                above, below = above + gate * value[j], below + gate
        out.append(own[i] + above / below)
    return torch.stack(out), torch.stack(e) if e else edge


def results(function, arguments, inputs):
    return with_gradients(function(*arguments), inputs)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("edge_index", [*(GRAPHS[name].edge_index for name in NAMES), MULTI], ids=[*NAMES, "multi"])
def test_gated_sum_is_the_formula(edge_index, scaled):
    num_nodes = max([int(edge_index.max()) + 2 if edge_index.numel() else 1])
    *given, scale = draw(num_nodes, edge_index.size(1))
    arguments = (*given, edge_index, scale if scaled else None)
    inputs = [*given, scale] if scaled else given
    found, wanted = (results(function, arguments, inputs) for function in (gated_sum, gated_sum_reference))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    single = [x.detach().float().requires_grad_() for x in inputs]
    arguments = (*single[:2], edge_index.int(), single[2] if scaled else None)
    for mine, other in zip(results(gated_sum, arguments, single), wanted):
        torch.testing.assert_close(mine, other.float(), rtol=1e-4, atol=1e-5)


def test_gates_that_are_wide_open_or_closed():
    *given, _ = draw(4, MULTI.size(1))
    with torch.no_grad():
        given[1].copy_(torch.tensor([0.0, 40, 800, -40, -800, 1e30])[:, None])
    found = results(gated_sum, (*given, MULTI), given)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found[:2], gated_sum_reference(*given, MULTI), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("channels", [16, 17, 31, 50])
def test_channels_that_fill_vectors_or_not(channels):
    inputs = draw(4, MULTI.size(1), channels)
    found, wanted = (
        results(function, (*inputs[:2], MULTI, inputs[2]), inputs) for function in (gated_sum, gated_sum_reference)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_gradients_of_one_input_are_those_of_all():
    """Room for gradients that nobody wants is made by the compiled function."""
    inputs, edge_index = draw(40, 300, 50), torch.randint(40, (2, 300))
    wanted = results(gated_sum, (*inputs[:2], edge_index, inputs[2]), inputs)[2:]
    for number, grad in enumerate(wanted):
        given = [x.detach().requires_grad_(k == number) for k, x in enumerate(inputs)]
        found = results(gated_sum, (*given[:2], edge_index, given[2]), [given[number]])[2]
        torch.testing.assert_close(found, grad, rtol=0, atol=0)


def test_nan_is_not_hidden():
    *given, _ = (x.detach() for x in draw(4, MULTI.size(1)))
    given[1][2] = torch.nan
    out, e = gated_sum(*given, MULTI)
    assert out.isnan().all(1).tolist() == [False, True, False, False]
    assert e.isnan().all(1).tolist() == [False, False, True, False, False, False]
