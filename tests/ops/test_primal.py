"""The map of Primphormer's queries and keys: what its attention's definition and the checks of compiled code leave."""

import pytest
import torch

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.primal import primal_map
from tests.ops.compare import assert_dropout_keeps_the_mean, with_gradients


def draw(num_nodes, heads, width, rank):
    shapes = [(num_nodes, 2 * heads, width), (num_nodes, rank), (2 * heads, width, rank + 1), (2, rank, width)]
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_dropout_of_scores_keeps_the_mean_and_the_squares():
    inputs = draw(5, 2, 3, 4)
    out, squares = primal_map(*inputs)
    assert_dropout_keeps_the_mean(lambda: primal_map(*inputs, 0.3)[0], out, 500)
    assert torch.equal(primal_map(*inputs, 0.3)[1], squares)


def test_a_query_without_a_direction():
    inputs = draw(4, 1, 3, 2)
    with torch.no_grad():
        inputs[0][1, 0] = inputs[0][3] = 0
        inputs[0][2, 1] *= 1e-14
    (out, _), grads = primal_map(*inputs), with_gradients(primal_map(*inputs), inputs)[2:]
    assert (out[3] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][1, 0] == 0).all()
    assert (grads[0][2, 1] == 0).all()
    assert (grads[0][1, 1] != 0).any()


@pytest.mark.skipif(bool(loader.missing("primal")), reason="needs a C++ compiler")
def test_only_inputs_are_kept():
    inputs, kept = draw(500, 2, 24, 30), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        primal_map(*inputs, 0.1)
    assert sum(x.numel() for x in kept) == sum(x.numel() for x in inputs) + 1  # and the seed
