"""Means of compiled attention on pairs, and entries from coefficients, against plain torch in values and gradients."""

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import GRFMask, MaskedAttention, RWGNKMask
from pyg_topomask.ops.attention import compiled_pairs, fused_pairs
from pyg_topomask.ops.attention.fused_pairs import fused_means
from pyg_topomask.ops.attention.pair_kernels import scaled
from pyg_topomask.ops.numerics import power_of_two, weighted_mean
from pyg_topomask.ops.sparse import Combination, Pattern
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks
from tests.ops.attention.pair_cases import (
    KERNELS,
    compiled,
    gradients,
    graphs_on_their_own,
    inputs,
    numbers,
    one_graph_in_segments,
    random_pattern,
    with_sides,
)


def coefficients(pattern, heads, terms, by_head):
    """Weights, and those of the bounds; and what makes entries and bounds of both."""
    shape = (heads, terms) if by_head else (terms,)
    coeffs = torch.rand(pattern.nnz, terms, dtype=torch.float64)
    weights = numbers(*shape)
    bounds = (weights.detach().abs() + 0.1).requires_grad_()
    return weights, bounds, lambda x: Combination(coeffs.to(x.dtype), x)


def means(kernel, pattern, entries, bounds, q, k, v, tolerance, key_scale):
    """`fused_means` in plain torch."""
    entry, bound = (x.values if isinstance(x, Combination) else x for x in (entries, bounds))
    q, k = (q, k) if kernel.name == "additive" else scaled(q, k, key_scale)
    sums = kernel.sums_of_heads(pattern, entry, entry if bounds is entries else bound, q, k, v)
    return weighted_mean(sums, v.size(-1), tolerance)


def keys_scaled(k):
    return power_of_two(k.detach().abs().amax((0, 2), keepdim=True)).expand(k.size(0), -1, 1)


@compiled
@pytest.mark.parametrize("own_bound", [False, True])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize(
    ("heads", "width", "terms", "by_head"), [(1, 16, 15, False), (2, 5, 6, True), (3, 8, 1, False)]
)
def test_means_with_entries_from_coefficients(kernel, own_bound, heads, width, terms, by_head):
    for order in (None, torch.randperm(20)):
        pattern = random_pattern(20, 0.4, order)
        weights, bound_weights, combine = coefficients(pattern, heads, terms, by_head)
        _, _, *qkv = with_sides(kernel, inputs(pattern, heads, width, 3))
        qkv = [x.detach().requires_grad_() for x in qkv]
        key_scale = keys_scaled(qkv[1]) if "linear" in kernel.name else None
        entries = combine(weights)
        bounds = entries if own_bound else combine(bound_weights)
        call = kernel, pattern, entries, bounds, *qkv, 1e-12, key_scale
        (found, total), wanted = fused_means(*call), means(*call)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        assert total[pattern.rowptr.diff() == 0].eq(0).all()
        assert not total.requires_grad
        tensors = [weights, *([] if own_bound else [bound_weights]), *qkv]
        torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), rtol=1e-8, atol=1e-8)


@compiled
@pytest.mark.parametrize("terms", [3, 8, 15, 21, 66])
def test_coefficients_in_single_precision(terms):
    pattern = random_pattern(60, 0.4, torch.randperm(60))
    weights, bounds, combine = coefficients(pattern, 1, terms, False)
    _, _, *qkv = inputs(pattern, 1, 16, 16)
    results = []
    for dtype, attend in ((torch.float32, lambda *x: fused_means(*x)[0]), (torch.float64, means)):
        tensors = [x.detach().float().to(dtype).requires_grad_() for x in (weights, bounds, *qkv)]
        w, b, q, k, v = tensors
        kernel = KERNELS["features_signed"]
        out = attend(kernel, pattern, combine(w), combine(b), q, k, v, torch.full((60, 1, 1), 1e-6), keys_scaled(k))
        results.append([x.detach().double() for x in (out, *gradients(out, tensors))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@compiled
@pytest.mark.parametrize("name", ["linear", "linear_signed", "features_signed", "softmax"])
def test_derivatives_of_means_with_coefficients(name):
    pattern = random_pattern(4, 0.7, torch.tensor([2, 0, 3, 1]))
    weights, bounds, combine = coefficients(pattern, 2, 6, True)
    qkv = [x.detach().abs().requires_grad_() for x in inputs(pattern, 2, 2, 2)[2:]]

    def attend(weights, bounds, q, k, v):
        scale = keys_scaled(k) if "linear" in KERNELS[name].name else None
        own = combine(weights.abs())  # positive, so that no signed denominator comes close to zero
        return fused_means(KERNELS[name], pattern, own, combine(bounds), q, k, v, 1e-12, scale)[0]

    assert torch.autograd.gradcheck(attend, (weights, bounds, *qkv))
    assert torch.autograd.gradgradcheck(attend, (weights, bounds, *qkv), fast_mode=True)


@compiled
@pytest.mark.parametrize("make_pattern", [one_graph_in_segments, graphs_on_their_own])
def test_threads_change_no_gradient_of_weights(monkeypatch, make_pattern):
    monkeypatch.setattr(compiled_pairs, "_WORK_PER_THREAD", 1)
    pattern, threads = make_pattern(), torch.get_num_threads()
    weights, _, combine = coefficients(pattern, 2, 15, True)
    weights = weights.detach().float().requires_grad_()
    qkv = [x.detach().float() for x in inputs(pattern, 2, 3, 2)[2:]]
    found = []
    try:
        for num in (1, 3):
            torch.set_num_threads(num)
            entries = combine(weights)
            out, _ = fused_means(KERNELS["linear_signed"], pattern, entries, entries, *qkv, 1e-6, keys_scaled(qkv[1]))
            found.append([out, *gradients(out, [weights])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@compiled
def test_means_are_zero_where_the_denominator_vanishes():
    pattern = Pattern(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2]), 3, 3)
    entry = torch.tensor([1.0, 1.0, 1e-37, 1.0], requires_grad=True)
    q, k, v = (
        x.requires_grad_()
        for x in (torch.ones(3, 1, 1), torch.tensor([[[1.0]], [[-1.0]], [[1.0]]]), torch.ones(3, 1, 2))
    )
    kernel = KERNELS["both_signed"]
    out, total = fused_means(kernel, pattern, entry, entry, q, k, v, 1e-6)
    assert out[:, 0, 0].tolist() == total.flatten().tolist() == [0, 0, 1]
    grads = torch.autograd.grad(out.sum(), [entry, q, k, v])
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[0].tolist()[:3] == [0, 0, 0]
    assert grads[3].flatten().tolist() == [0, 0, 0, 0, 1, 1]


@compiled
def test_the_operator_with_coefficients_is_one_that_torch_can_compile():
    pattern = random_pattern(6, 0.5, torch.randperm(6))
    weights, bounds, combine = coefficients(pattern, 2, 6, True)
    qkv = [x.detach().requires_grad_() for x in inputs(pattern, 2, 4, 4)[2:]]
    kernel, scale, coeffs = KERNELS["features_signed"], keys_scaled(qkv[1]), combine(weights).coeffs.t().contiguous()
    structure = pattern.rowptr, pattern.col, None, None, pattern.order, coeffs, coeffs
    arguments = (*qkv, weights, bounds, None, *structure, scale, torch.full((1,), 1e-6).double(), 0, *kernel)
    torch.library.opcheck(fused_pairs._pairs, arguments, test_utils=("test_schema", "test_faketensor"))
    tensors = weights, bounds, *qkv

    def attend(weights, bounds, *qkv):
        return fused_means(kernel, pattern, combine(weights), combine(bounds), *qkv, 1e-6, scale)[0]

    traced = torch.compile(attend, backend="aot_eager", fullgraph=True)
    found, wanted = traced(*tensors), attend(*tensors)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors))


@compiled
@pytest.mark.parametrize("normalizer", ["bound", "signed"])
@pytest.mark.parametrize("kernel", ["relu", "softmax_rf", "softmax"])
@pytest.mark.parametrize("mask", ["grf", "rwgnk"])
def test_attention_is_the_same_without_compiled_code(monkeypatch, mask, kernel, normalizer):
    walks = AddRandomWalks(num_walks=8, seed=0)
    batch = Batch.from_data_list([walks(GRAPHS[name].clone()) for name in ("path", "star", "weighted")])
    topology = GRFMask(2) if mask == "grf" else RWGNKMask(2, learnable=True)
    settings = {"num_features": 16, "normalizer": normalizer}  # `feature_pairs` serves more features
    module = MaskedAttention(8, 2, kernel, topology, "pairwise", **settings).double()
    if mask == "grf":
        with torch.no_grad():
            module.mask.modulation[0, 1] = -0.3
    x = numbers(batch.num_nodes, 8)

    def values_and_gradients():
        out = module(x, batch.batch, batch)
        return out, torch.autograd.grad(out.square().sum(), [x, *module.parameters()])

    calls = []
    monkeypatch.setattr(fused_pairs, "fused_means", lambda *args: calls.append(args) or fused_means(*args))
    found = values_and_gradients()
    assert len(calls) == 1
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    torch.testing.assert_close(found, values_and_gradients(), rtol=1e-9, atol=1e-10)
    assert len(calls) == 1
