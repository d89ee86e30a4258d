"""The map of Primphormer's queries and keys against the formula, with all gradients."""

import pytest
import torch

from pyg_topomask.ops.dropout import dropout_reference
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.primal import primal_map
from tests.ops.compare import with_gradients

EXACT = {"rtol": 1e-10, "atol": 1e-12}
SIZES = [(0, 1, 3, 2), (1, 1, 1, 1), (5, 2, 3, 4), (63, 3, 8, 7), (64, 1, 24, 30), (65, 2, 17, 15)]
"""Nodes, heads, width of a head, rank; around the sizes of vectors, tiles and tasks."""


def draw(num_nodes, heads, width, rank, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = [(num_nodes, 2 * heads, width), (num_nodes, rank), (2 * heads, width, rank + 1), (2, rank, width)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def primal_map_reference(qk, update, weight, out_weight, keep=None):
    """From the formula, a query or key at a time; ``keep`` are dropout's factors ``[2 H, N, s]``."""
    num_nodes, features, width = qk.shape
    heads, rank = features // 2, update.size(1)
    squares = torch.stack([weight.new_zeros(rank) for _ in range(features)])
    rows = []
    for i in range(num_nodes):
        heads_of_node = []
        for h in range(heads):
            total = qk.new_zeros(width)
            for half, a in enumerate((h, heads + h)):
                unit = qk[i, a] / qk[i, a].norm()
                z = weight[a, :, :rank].t() @ unit + (weight[a, :, rank] @ unit) * update[i]
                squares = squares.index_add(0, torch.tensor([a]), z.square()[None])
                total = total + out_weight[half].t() @ (z if keep is None else z * keep[a, i])
            heads_of_node.append(total)
        rows.append(torch.stack(heads_of_node))
    return torch.stack(rows) if rows else qk.sum() * qk.new_zeros(0, heads, width), squares


def results(function, inputs):
    """The output, the squares, and gradients of both."""
    return with_gradients(function(*inputs), inputs)


@pytest.mark.parametrize("sizes", SIZES)
def test_is_the_formula(sizes):
    inputs = draw(*sizes)
    torch.testing.assert_close(results(primal_map, inputs), results(primal_map_reference, inputs), **EXACT)


def test_dropout_of_scores_is_that_of_the_array_of_scores():
    inputs, dropped = draw(5, 2, 3, 4), 20_000
    torch.manual_seed(3)
    keep = dropout_reference(torch.ones(4, 5, 4, dtype=torch.float64), int(draw_seeds(1)), dropped)
    assert 0 < (keep == 0).sum() < keep.numel()

    def run(*inputs):
        torch.manual_seed(3)
        return primal_map(*inputs, dropped / 2**16)

    torch.testing.assert_close(
        results(run, inputs), results(lambda *x: primal_map_reference(*x, keep), inputs), **EXACT
    )


def test_a_query_without_a_direction():
    inputs = draw(4, 1, 3, 2)
    with torch.no_grad():
        inputs[0][1, 0] = 0
        inputs[0][2, 1] *= 1e-14
    grads = results(primal_map, inputs)[2:]
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
