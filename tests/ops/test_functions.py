"""Functions of the library under transforms of torch.func, forward mode, and autocast."""

import pytest
import torch

from pyg_topomask.ops.edge_sum import neighbour_sum
from pyg_topomask.ops.gated_sum import gated_sum
from pyg_topomask.ops.products.forest import build_forest, sibling_forest
from pyg_topomask.ops.products.trees import sibling_sum, sweep_down, sweep_up
from pyg_topomask.ops.sparse import Pattern, permute_rows, sampled_product, spmm
from pyg_topomask.testing.checks import check_forward_mode, check_reverse_mode
from tests.ops.compare import with_gradients

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
    "gated": ((4, 8), (6, 2)),
    "gated_scale": ((4, 8), (6, 2), (6, 1)),
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
    "siblings": lambda x: sibling_sum(sibling_forest(PARENT), x),
    "gated": lambda *x: torch.cat(gated_sum(*x, MULTI)),
    "gated_scale": lambda *x: torch.cat(gated_sum(*x[:2], MULTI, x[2])),
}


@pytest.fixture(params=FUNCTIONS)
def case(request):
    return FUNCTIONS[request.param], [torch.randn(size, dtype=torch.float64) for size in SIZES[request.param]]


def test_derivatives_of_all_kinds(case):
    function, inputs = case
    leaves = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)
    check_forward_mode(function, inputs)
    check_reverse_mode(function, inputs)
    out = function(*(x.float() for x in leaves))
    wanted = with_gradients(out, leaves)
    with torch.autocast("cpu", torch.bfloat16):  # the backward pass alone
        torch.testing.assert_close(with_gradients(out, leaves), wanted)
    places = tuple(range(len(inputs)))
    jacobians = (transform(function, places)(*inputs) for transform in (torch.func.jacrev, torch.func.jacfwd))
    torch.testing.assert_close(*jacobians)
    many = [torch.stack([x, 2 * x]) for x in inputs]
    torch.testing.assert_close(torch.vmap(function)(*many)[1], function(*[2 * x for x in inputs]))
