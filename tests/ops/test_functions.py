"""Functions of the library under transforms of torch.func, forward mode, and autocast."""

import pytest
import torch
from torch.autograd import forward_ad

from pyg_topomask.ops.edge_sum import neighbour_sum
from pyg_topomask.ops.gated_sum import gated_sum
from pyg_topomask.ops.products.forest import build_forest, sibling_order
from pyg_topomask.ops.products.trees import sibling_sum, sweep_down, sweep_up
from pyg_topomask.ops.sparse import Pattern, permute_rows, sampled_product, spmm

PATTERN = Pattern(torch.tensor([0, 0, 1, 3]), torch.tensor([1, 2, 0, 1]), 4, 3)
PARENT = torch.tensor([-1, 0, 1, 1, -1])
MULTI = torch.tensor([[0, 0, 2, 1, 1, 3], [1, 1, 1, 0, 1, 3]])  # a double edge, self-loops, unsorted
ORDER = torch.tensor([2, 0, 1])
SIZES = {
    "spmm": ((4,), (3, 2)),
    "spmm_heads": ((4, 2), (3, 2, 2)),
    "sampled": ((4, 2), (3, 2)),
    "permute": ((3, 2),),
    "neighbours": ((4, 2),),
    "up": ((5, 2, 4), (5, 2)),
    "down": ((5, 2, 4), (5, 1)),
    "shifted": ((5, 1, 4), (5, 1)),
    "siblings": ((5, 1, 2),),
    "gated": ((4, 2), (4, 2), (4, 2), (6, 2)),
    "gated_scale": ((4, 2), (4, 2), (4, 2), (6, 2), (6, 1)),
}
FUNCTIONS = {
    "spmm": lambda value, x: spmm(PATTERN, value, x),
    "spmm_heads": lambda value, x: spmm(PATTERN, value, x),
    "sampled": lambda left, right: sampled_product(PATTERN, left, right),
    "permute": lambda x: permute_rows(x, ORDER, ORDER.argsort()),
    "neighbours": lambda x: neighbour_sum(x, torch.tensor([[0, 1, 1], [1, 2, 0]])),
    "up": lambda x, weight: sweep_up(build_forest(PARENT), x, weight),
    "down": lambda x, weight: sweep_down(build_forest(PARENT), x, weight),
    "shifted": lambda x, weight: sweep_up(build_forest(PARENT), x, weight, 1),
    "siblings": lambda x: sibling_sum(sibling_order(PARENT), x),
    "gated": lambda *x: torch.cat(gated_sum(*x, MULTI)),
    "gated_scale": lambda *x: torch.cat(gated_sum(*x[:4], MULTI, x[4])),
}


@pytest.fixture(params=FUNCTIONS)
def case(request):
    torch.manual_seed(0)
    return FUNCTIONS[request.param], [torch.randn(size, dtype=torch.float64) for size in SIZES[request.param]]


def test_forward_mode(case):
    function, inputs = case
    tangents = [torch.randn_like(x) for x in inputs]
    moved = [[x + sign * 1e-6 * t for x, t in zip(inputs, tangents)] for sign in (1, -1)]
    wanted = (function(*moved[0]) - function(*moved[1])) / 2e-6
    found = torch.func.jvp(function, tuple(inputs), tuple(tangents))[1]
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    with forward_ad.dual_level():
        out = function(*map(forward_ad.make_dual, inputs, tangents))
        torch.testing.assert_close(forward_ad.unpack_dual(out).tangent, wanted, rtol=1e-6, atol=1e-8)


def test_transforms(case):
    function, inputs = case
    places = tuple(range(len(inputs)))
    leaves = [x.clone().requires_grad_() for x in inputs]
    wanted = torch.autograd.functional.jacobian(function, tuple(leaves))
    torch.testing.assert_close(torch.func.jacrev(function, places)(*inputs), wanted)
    torch.testing.assert_close(torch.func.jacfwd(function, places)(*inputs), wanted)
    many = [torch.stack([x, 2 * x]) for x in inputs]
    torch.testing.assert_close(torch.vmap(function)(*many)[1], function(*[2 * x for x in inputs]))


def test_derivatives(case):
    function, inputs = case
    leaves = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_a_backward_pass_inside_of_autocast(case):
    function, inputs = case
    leaves = [x.float().requires_grad_() for x in inputs]
    out = function(*leaves)
    wanted = torch.autograd.grad(out.square().sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.square().sum(), leaves)
    torch.testing.assert_close(found, wanted)
