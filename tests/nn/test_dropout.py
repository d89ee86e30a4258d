"""Dropout of ours: what stays, what it is scaled by, and what decides on it."""

import pytest
import torch

from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.ops import dropout as dropout_ops
from pyg_topomask.ops.dropout import dropout
from pyg_topomask.ops.native import loader

compiled = pytest.mark.skipif(bool(loader.missing("dropout")), reason="needs a C++ compiler")

PLACES = 1_000_001  # no multiple of the entries that one draw decides on


@pytest.mark.parametrize("p", [0.1, 0.5, 0.85])
def test_entries_are_zeroed_independently_with_that_probability(p):
    values = dropout(torch.ones(PLACES, dtype=torch.float64), p)
    expected = torch.tensor([0, 1 / (1 - p)], dtype=torch.float64)
    torch.testing.assert_close(values.unique(), expected, rtol=1e-4, atol=0)  # the mean stays
    kept = (values != 0).double()
    # Five standard deviations: a wrong implementation fails, a right one in one of 10^6 seeds.
    assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / PLACES) ** 0.5 + 2**-17
    for lag in (1, 2, 3, 4, 8):  # within one draw, and beyond
        both = ((kept[lag:] - (1 - p)) * (kept[:-lag] - (1 - p))).mean()
        assert abs(both) < 5 * p * (1 - p) / PLACES**0.5 + 2**-16


def test_edges_of_the_range():
    x = torch.randn(50)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(50))
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="'p' must be a probability, between 0 and 1"):
            dropout(x, p)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradient_has_the_mask_of_the_forward_pass(compiled):
    module, x = Dropout(0.5), torch.ones(64, requires_grad=True)
    module = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    first, second = module(x), module(x)
    assert set(first.tolist()) == {0.0, 2.0}
    assert first.tolist() != second.tolist()
    (first + second).sum().backward()
    assert torch.equal(x.grad, first + second)


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 3), (700, 101)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", ["none", "same shape", "transposed", "broadcast", "other dtype"])
def test_one_pass_is_separate_steps(monkeypatch, residual, relu, shape, dtype):
    monkeypatch.setattr(dropout_ops, "_LEAST_COMPILED", 0)
    added = {
        "none": None,
        "same shape": torch.randn(shape, dtype=dtype),
        "transposed": torch.randn(shape[::-1], dtype=dtype).t(),
        "broadcast": torch.randn(shape[1], dtype=dtype),
        "other dtype": torch.randn(shape, dtype=torch.bfloat16),
    }[residual]
    x = torch.randn(shape, dtype=dtype).index_fill_(0, torch.tensor([1]), 0).requires_grad_()
    inputs = [x] if added is None else [x, added.requires_grad_()]
    results = []
    for one_pass in (True, False):
        torch.manual_seed(0)
        if one_pass:
            out = dropout(x, 0.3, relu=relu, residual=added)
        else:
            out = dropout(x.relu() if relu else x, 0.3)
            out = out if added is None else added + out
        weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    assert all(torch.equal(*pair) for pair in zip(*results))  # each entry has the same operations in the same order


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.3, False)])
def test_rectified_with_a_residual_where_nothing_is_drawn(training, p):
    x, residual = torch.randn(2, 9, 4, dtype=torch.float64)
    found = dropout(x, p, training, relu=True, residual=residual)
    assert torch.equal(found, residual + (p < 1) * x.clamp(min=0))


@pytest.mark.parametrize("act", [torch.nn.ReLU(), torch.nn.GELU()])
def test_dropout_after_an_activation_and_its_hooks(act):
    module, x, residual, seen = Dropout(0.4), torch.randn(500, 200), torch.randn(500, 200), []
    torch.manual_seed(0)
    found = module.after(act, x, residual)
    torch.manual_seed(0)
    assert torch.equal(found, residual + module(act(x)))
    module.register_forward_hook(lambda *_: seen.append("hook"))
    torch.manual_seed(0)
    assert torch.equal(module.after(act, x, residual), found)
    assert seen == ["hook"]
