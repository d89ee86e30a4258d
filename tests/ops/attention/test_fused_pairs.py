"""Sums of compiled attention on pairs against the same kernels in plain torch, in values and all gradients."""

from functools import partial

import pytest
import torch

from pyg_topomask.ops.attention import compiled_pairs, fused_pairs
from pyg_topomask.ops.attention.fused_pairs import fused_sums, refuses
from pyg_topomask.ops.attention.pair_kernels import EdgeVectors, PairKernel
from pyg_topomask.ops.hashing import draw_seeds, keep_factors
from pyg_topomask.ops.sparse import Combination, Pattern
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

DROPOUT = PairKernel("softmax", True, dropout=0.4)


def edge_vectors(pattern, heads, width):
    """Three vectors of any pairs, and one of each other pair, with gaps in memory."""
    of_pair, own = torch.randint(3, (pattern.nnz,)), torch.rand(pattern.nnz) < 0.5
    of_pair[own] = 3 + torch.randperm(int(own.sum()))
    return EdgeVectors(numbers(3 + int(own.sum()), heads, width + 1)[..., 1:], of_pair.int(), 3)


def check(kernel, pattern, tensors, **tol):
    tensors = entry, bound, *qkv = with_sides(kernel, tensors)
    assert refuses(qkv[0], qkv[2]) is None
    found, wanted = fused_sums(kernel, pattern, *tensors), kernel.sums_of_heads(pattern, entry, bound, *qkv)
    torch.testing.assert_close(found, wanted, **tol)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), **tol)


@compiled
@pytest.mark.parametrize("own_bound", [False, True])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize(
    ("heads", "width", "channels", "entries"),
    [(1, 8, 8, "shared"), (2, 5, 3, "shared"), (3, 16, 24, "heads"), (2, 33, 1, "pairs")],
)
def test_equals_plain_torch(kernel, own_bound, heads, width, channels, entries):
    for order in (None, torch.randperm(20)):
        pattern = random_pattern(20, 0.4, order)
        tensors = inputs(pattern, heads, width, channels, entries, own_bound)
        check(kernel, pattern, tensors, rtol=1e-10, atol=1e-10)


@compiled
@pytest.mark.parametrize("width", [1, 8, 12, 16, 24, 32, 40])
@pytest.mark.parametrize("kernel", [KERNELS["linear_signed"], KERNELS["features_signed"], KERNELS["softmax"]])
def test_single_precision_of_every_width(kernel, width):
    pattern = random_pattern(40, 0.5)
    tensors = [x.detach() / width**0.5 for x in inputs(pattern, 2, width, width)]
    single = [x.float().requires_grad_() for x in tensors]
    double = [x.double().requires_grad_() for x in single]
    found = fused_sums(kernel, pattern, *single)
    wanted = kernel.sums_of_heads(pattern, *double)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(found, single), gradients(wanted, double)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_first_and_second_derivatives(kernel):
    pattern = random_pattern(4, 0.7)
    tensors = [x.detach().requires_grad_() for x in with_sides(kernel, inputs(pattern, 2, 2, 2))]

    def attend(*tensors):  # the size is a constant of signed normalisers, and only quotients know nothing of the top
        sums = fused_sums(kernel, pattern, *tensors)[..., :3]
        numerator, denominator = sums[has_pairs].split([2, 1], dim=-1)
        return sums if kernel.name == "linear" else numerator / denominator

    has_pairs = pattern.rowptr.diff() > 0
    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)


@compiled
@pytest.mark.parametrize("name", ["linear", "softmax"])
def test_one_tensor_as_queries_keys_and_values_has_one_gradient(name):
    kernel, pattern, x = KERNELS[name], random_pattern(6, 0.7), numbers(6, 2, 3)
    entry = torch.rand(pattern.nnz, dtype=torch.float64)
    found, wanted = (
        torch.autograd.grad(attend(pattern, entry, entry, x, x, x)[..., :3].sin().sum(), x, create_graph=True)[0]
        for attend in (partial(fused_sums, kernel), kernel.sums_of_heads)
    )
    torch.testing.assert_close(found, wanted)


@compiled
def test_threads_do_not_change_entries_of_coefficients(monkeypatch):
    """Where a row begins in a window, and so the place of a pair in a vector, depends on the number of threads."""
    monkeypatch.setattr(compiled_pairs, "_WORK_PER_THREAD", 1)
    pattern, threads, found = Pattern(*torch.ones(130, 130).nonzero().t(), 130, 130), torch.get_num_threads(), []
    coeffs, weight, *qkv = (torch.randn(*shape).requires_grad_() for shape in ((130**2, 5), (5,), *[(130, 1, 8)] * 3))
    try:
        for num in (1, 2):
            torch.set_num_threads(num)
            entry = Combination(coeffs.detach(), weight)
            sums = fused_sums(KERNELS["linear"], pattern, entry, entry, *qkv)
            found.append([sums, *torch.autograd.grad(sums.square().sum(), [weight, *qkv])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found))


def one_graph_in_one_segment():
    """One thread takes the segment; several share its rows."""
    return random_pattern(600, 0.05)


def one_graph_in_turns():
    """Six segments: one thread takes two of them at a time, several take all. Each shares columns with the next one."""
    row, col = torch.arange(4000).repeat_interleave(220), torch.arange(220).repeat(4000)
    col = row + 3 * col - 300
    exists = (col >= 0) & (col < 4000)
    pattern = Pattern(row[exists], col[exists], 4000, 4000)
    assert pattern.nnz > 6 * 2**17
    return pattern


PATTERNS = [one_graph_in_segments, one_graph_in_one_segment, one_graph_in_turns, graphs_on_their_own]


@compiled
@pytest.mark.parametrize("entries", ["shared", "heads"])
@pytest.mark.parametrize("name", ["features_signed", "softmax"])
@pytest.mark.parametrize("make_pattern", PATTERNS)
def test_threads_change_nothing(monkeypatch, make_pattern, name, entries):
    monkeypatch.setattr(compiled_pairs, "_WORK_PER_THREAD", 1)
    pattern, kernel, threads = make_pattern(), KERNELS[name], torch.get_num_threads()
    tensors = [x.detach().float().requires_grad_() for x in inputs(pattern, 3, 3, 2, entries)]
    found = []
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            sums = fused_sums(kernel, pattern, *tensors)
            found.append([sums, *gradients(sums, tensors)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))
    double = [x.detach().double().requires_grad_() for x in tensors]
    check(kernel, pattern, double, rtol=1e-9, atol=1e-9)


@compiled
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_graphs_in_a_batch_do_not_mix(kernel):
    block = torch.rand(9, 9) < 0.6
    pattern = Pattern(*torch.block_diag(block, block).nonzero().t(), 18, 18)
    entry, bound, *qkv = with_sides(kernel, inputs(pattern, 2, 8, 8))
    first = gradients(sums := fused_sums(kernel, pattern, entry, bound, *qkv), qkv)
    spoilt = [torch.cat([x[:9].detach(), 1e6 * x[9:].detach()]).requires_grad_() for x in qkv]
    second = gradients(other := fused_sums(kernel, pattern, entry, bound, *spoilt), spoilt)
    for a, b in zip([sums, *first], [other, *second]):
        assert torch.equal(a[:9], b[:9])


@compiled
def test_scores_of_any_size_and_entries_of_zero():
    pattern = random_pattern(30, 0.5)
    entry, _, q, k, v = (x.detach() for x in inputs(pattern, 2, 4, 4, "heads", True))
    entry = torch.where(entry < 0, 0, entry).requires_grad_()
    tensors = [entry, entry, *((x * scale).requires_grad_() for x, scale in ((q, 100), (k, 10), (v, 1)))]
    check(KERNELS["softmax"], pattern, tensors, rtol=1e-9, atol=1e-9)
    assert fused_sums(KERNELS["softmax"], pattern, *tensors).isfinite().all()


@compiled
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_without_pairs_or_rows(kernel):
    nothing = torch.empty(0, dtype=torch.int64)
    for num_rows in (0, 3):
        pattern = Pattern(nothing, nothing, num_rows, 3)
        entry, bound, q, k, v = inputs(pattern, 2, 4, 4)
        tensors = [entry, bound, q[:num_rows], k, v]
        check(kernel, pattern, tensors, rtol=0, atol=0)


@compiled
@pytest.mark.parametrize("name", ["softmax", "features_signed", "additive_signed"])
def test_dropout_zeroes_the_weights_that_hashes_choose(name):
    kernel, pattern, heads = KERNELS[name]._replace(dropout=0.4), random_pattern(20, 0.5), 3
    tensors = entry, bound, *qkv = with_sides(kernel, inputs(pattern, heads, 5, 3))
    torch.manual_seed(0)
    kept = keep_factors(0.4, draw_seeds(1), torch.arange(pattern.nnz * heads).view(-1, heads))
    torch.manual_seed(0)
    found, wanted = fused_sums(kernel, pattern, *tensors), kernel.sums_of_heads(pattern, entry, bound, *qkv, kept=kept)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), rtol=1e-10, atol=1e-10)
    assert abs((kept == 0).double().mean() - 0.4) < 0.1
    assert torch.equal(kept.unique(), torch.tensor([0, 1 / 0.6], dtype=torch.float64))
    assert not torch.equal(found, fused_sums(kernel, pattern, *tensors))  # new draws


@compiled
def test_derivatives_with_dropout():
    pattern = random_pattern(4, 0.7)
    tensors = [x.detach().requires_grad_() for x in inputs(pattern, 2, 2, 2)]

    def attend(*tensors):
        torch.manual_seed(0)
        return fused_sums(KERNELS["features_signed"]._replace(dropout=0.5), pattern, *tensors)

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)


@compiled
@pytest.mark.parametrize("dropout", [0, 0.3])
@pytest.mark.parametrize(("heads", "width", "channels"), [(1, 8, 8), (2, 5, 3), (3, 24, 24), (2, 33, 1)])
def test_edge_vectors(heads, width, channels, dropout):
    pattern = graphs_on_their_own() if width == 24 else random_pattern(20, 0.4, torch.randperm(20))
    kernel, edges = KERNELS["softmax"]._replace(dropout=dropout), edge_vectors(pattern, heads, width)
    entry, bound, *qkv = inputs(pattern, heads, width, channels)
    torch.manual_seed(0)
    found = fused_sums(kernel, pattern, entry, bound, *qkv, edges)
    torch.manual_seed(0)
    kept = keep_factors(dropout, draw_seeds(1), torch.arange(pattern.nnz * heads).view(-1, heads))
    wanted = kernel.sums_of_heads(pattern, entry, bound, *qkv, kept=kept, edges=edges)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    tensors = [entry, bound, *qkv, edges.vectors]
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), rtol=1e-9, atol=1e-9)


@compiled
@pytest.mark.parametrize("width", [8, 12, 16, 24, 32])
def test_edge_vectors_in_single_precision(width):
    pattern = random_pattern(40, 0.5)
    edges = edge_vectors(pattern, 2, width)
    tensors = [*inputs(pattern, 2, width, width), edges.vectors]
    single = [(x.detach() / width**0.5).float().requires_grad_() for x in tensors]
    double = [x.detach().double().requires_grad_() for x in single]
    found, wanted = (
        sums(KERNELS["softmax"], pattern, *given[:5], edges=edges._replace(vectors=given[5]))
        for sums, given in ((fused_sums, single), (PairKernel.sums_of_heads, double))
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(found, single), gradients(wanted, double)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@compiled
def test_first_and_second_derivatives_of_edge_vectors():
    pattern = random_pattern(4, 0.7)
    has_pairs, edges = pattern.rowptr.diff() > 0, edge_vectors(pattern, 2, 2)
    tensors = [x.detach().requires_grad_() for x in (*inputs(pattern, 2, 2, 2), edges.vectors)]

    def attend(*tensors):
        given = edges._replace(vectors=tensors[5])
        numerator, denominator = fused_sums(KERNELS["softmax"], pattern, *tensors[:5], given)[has_pairs].split(
            [2, 1], -1
        )
        return numerator / denominator

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)


@compiled
@pytest.mark.parametrize("make_pattern", [one_graph_in_segments, graphs_on_their_own])
def test_threads_change_no_gradient_of_edge_vectors(monkeypatch, make_pattern):
    monkeypatch.setattr(compiled_pairs, "_WORK_PER_THREAD", 1)
    pattern, threads = make_pattern(), torch.get_num_threads()
    entry, _, *qkv = (x.detach().float() for x in inputs(pattern, 2, 3, 2))
    edges = edge_vectors(pattern, 2, 3)
    vectors = edges.vectors.detach().float().requires_grad_()
    found = []
    try:
        for num in (1, 3):
            torch.set_num_threads(num)
            sums = fused_sums(KERNELS["softmax"], pattern, entry, entry, *qkv, edges._replace(vectors=vectors))
            found.append([sums, *gradients(sums, [vectors])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@compiled
def test_nan_is_not_hidden():
    pattern = random_pattern(10, 0.9)
    tensors = [x.detach() for x in inputs(pattern, 1, 8, 8)]
    tensors[3][4] = torch.nan
    for kernel in KERNELS.values():
        rows = pattern.row[pattern.col == 4].long()
        assert fused_sums(kernel, pattern, *with_sides(kernel, tensors))[rows].isnan().any(-1).all()


def test_refusals(monkeypatch):
    x, wide = torch.zeros(3, 1, 8), torch.zeros(3, 1, 400)
    assert "float32 and float64 (got torch.bfloat16)" in refuses(x.bfloat16(), x.bfloat16())
    assert "faster as matrices" in refuses(wide, x)
    assert "on meta" in refuses(x.to("meta"), x)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert "TOPOMASK_NATIVE=0" in refuses(x, x)


@compiled
@pytest.mark.parametrize("name", ["both_signed", "softmax", "dropout"])
def test_the_operator_is_one_that_torch_can_compile(name):
    kernel, pattern = KERNELS.get(name, DROPOUT), random_pattern(6, 0.5)
    tensors = inputs(pattern, 2, 4, 4)
    entry, bound, *qkv = (x.detach().contiguous().requires_grad_() for x in tensors)
    seed = draw_seeds(1) if kernel.dropout else None
    edge, of_pair, common = edge_vectors(pattern, 2, 4) if name == "dropout" else (None, None, 0)
    arguments = (*qkv, entry, bound, edge, pattern.rowptr, pattern.col, of_pair, seed, *[None] * 5, common, *kernel)
    torch.library.opcheck(fused_pairs._pairs, arguments, test_utils=("test_schema", "test_faketensor"))
    traced = torch.compile(lambda *x: fused_sums(kernel, pattern, *x), backend="aot_eager", fullgraph=True)
    found, wanted = (torch.manual_seed(1) and run(*tensors) for run in (traced, partial(fused_sums, kernel, pattern)))
    assert torch.equal(found, wanted)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors))


@compiled
@pytest.mark.parametrize("name", KERNELS)
def test_bounds_have_gradients_if_the_entries_need_none(name):
    pattern, kernel = random_pattern(6, 0.5), KERNELS[name]
    entry, bound, *qkv = with_sides(kernel, inputs(pattern, 2, 4, 4))
    entry = entry.detach()
    results = fused_sums(kernel, pattern, entry, bound, *qkv), kernel.sums_of_heads(pattern, entry, bound, *qkv)
    found, wanted = (torch.autograd.grad(x.square().sum(), bound, allow_unused=True)[0] for x in results)
    torch.testing.assert_close(found, torch.zeros_like(bound) if wanted is None else wanted)


def test_vectors_without_numbers_are_left_to_plain_torch():
    x = torch.rand(5, 2, 4)
    assert "without numbers" in refuses(x[..., :0], x)
    assert "without numbers" in refuses(x, x[..., :0])
