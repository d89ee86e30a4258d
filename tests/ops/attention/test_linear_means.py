"""Linear attention without a mask, compiled and in plain torch, against the formula, with its gradients."""

import pytest
import torch

from pyg_topomask.ops.attention import linear_means as means_ops
from pyg_topomask.ops.attention.linear_means import linear_means
from pyg_topomask.ops.native import loader

compiled = pytest.mark.skipif(loader.missing("linear"), reason="needs a C++ compiler")

EXACT = {"rtol": 1e-10, "atol": 1e-12}
SIZES = {"one": [1], "tiles": [63, 64, 65], "empty": [5, 0, 0, 3, 0], "parts": [1500, 2, 1024]}


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "torch"])
def engine(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")


def batch_of(sizes):
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def draw(num_nodes, heads=2, width=3, channels=5, dtype=torch.float64):
    torch.manual_seed(0)
    q, k = (torch.rand(num_nodes, heads, width, dtype=dtype) for _ in range(2))
    return [x.requires_grad_() for x in (q, k, torch.randn(num_nodes, heads, channels, dtype=dtype))]


def linear_means_reference(q, k, v, batch):
    weights = torch.einsum("ihr,jhr->hij", q, k)
    weights = weights * (batch[:, None] == batch)
    return torch.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdim=True), v)


def results(function, inputs):
    out = function(*inputs)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((out * weights).sum(), inputs)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("widths", [(1, 1), (3, 5), (24, 24), (17, 30)])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_is_the_formula(sizes, widths):
    inputs, batch = draw(sum(sizes), 2, *widths), batch_of(sizes)
    found = results(lambda *x: linear_means(*x, batch)[0], inputs)
    torch.testing.assert_close(found, results(lambda *x: linear_means_reference(*x, batch), inputs), **EXACT)
    single = [x.detach().float().requires_grad_() for x in inputs]
    for mine, other in zip(results(lambda *x: linear_means(*x, batch)[0], single), found):
        torch.testing.assert_close(mine, other.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("engine")
def test_one_graph_without_a_batch_vector():
    inputs = draw(70)
    found = results(lambda *x: linear_means(*x, None)[0], inputs)
    wanted = results(lambda *x: linear_means_reference(*x, batch_of([70])), inputs)
    torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("power", [-90, 60])
def test_scales_of_features_change_nothing(power):
    """Their products alone would leave the range of float32. Powers of two change no digit."""
    inputs, batch = draw(40, dtype=torch.float32), batch_of([30, 10])
    large = [(x * 2.0**power).detach().requires_grad_() for x in inputs[:2]] + inputs[2:]
    found, wanted = (results(lambda *x: linear_means(*x, batch)[0], given) for given in (large, inputs))
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[3], wanted[3])
    torch.testing.assert_close(found[1] * 2.0**power, wanted[1])


@pytest.mark.usefixtures("engine")
def test_sizes_that_vanish():
    q, k, v = (x.detach() for x in draw(7))
    q[2] = 0
    k[4:] = 0  # those of the second graph
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, size = linear_means(*inputs, batch_of([4, 3]))
    zero = torch.tensor([False, False, True, False, True, True, True])
    assert size.shape == (7, 2, 1)
    assert not size.requires_grad
    assert torch.equal((size == 0).all(dim=(1, 2)), zero)
    assert torch.equal((out == 0).all(dim=(1, 2)), zero)
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][zero] == 0).all()
    assert (grads[1][4:] == 0).all()


@compiled
@pytest.mark.parametrize("size", [50, 1500])
def test_a_graph_alone_and_beside_others(size):
    inputs, batch = draw(size + 3000, 2, 24, 24, torch.float32), batch_of([size, 3000])
    spoilt = [torch.cat([x[:size], 1e6 * x[size:]]).detach().requires_grad_() for x in inputs]
    alone = [x[:size].detach().requires_grad_() for x in inputs]
    found = []
    for given, graphs in ((inputs, batch), (spoilt, batch), (alone, None)):
        out, _ = linear_means(*given, graphs)
        grads = torch.autograd.grad(out[:size].square().sum(), given)
        assert all((grad[size:] == 0).all() for grad in grads)
        found.append([x[:size] for x in (out, *grads)])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_not_hidden(place):
    inputs = [x.detach() for x in draw(6)]
    inputs[place][1, 0, 0] = torch.nan
    out, _ = linear_means(*inputs, batch_of([4, 2]))
    assert out[4:].isfinite().all()
    hit = out.isnan().any(dim=(1, 2))[:4]
    assert hit.tolist() == ([False, True, False, False] if place == 0 else [True] * 4)


def test_heads_that_are_left_to_plain_torch():
    refuses = means_ops._linear_means.refuses
    x = torch.zeros(3, 2, 4)
    assert "more than 4096 products" in refuses(*[torch.zeros(3, 1, 64)] * 3, None)
    assert "without features" in refuses(x[..., :0], x[..., :0], x, None)
