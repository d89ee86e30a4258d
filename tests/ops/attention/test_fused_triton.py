"""Attention on pairs by Triton's kernels, in its interpreter where there is no GPU, against the kernels in plain torch.

The interpreter takes 0.01 to 0.05 s for a row and a head, so that patterns are tiny.
"""

from itertools import product

import pytest
import torch

from pyg_topomask.nn import MaskedAttention, RWGNKMask
from pyg_topomask.ops.attention import fused_pairs, fused_triton
from pyg_topomask.ops.attention.fused_pairs import fused_sums
from pyg_topomask.ops.hashing import draw_seeds, keep_factors
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks
from tests.ops.attention.pair_cases import KERNELS, gradients, inputs, random_pattern, with_sides

pytest.importorskip("triton", reason="Triton is only published for Linux")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Triton serves CPU tensors, too; what it was asked for is listed."""
    calls, pair_sums = [], fused_triton.pair_sums
    monkeypatch.setattr(fused_pairs, "_uses_triton", lambda q: True)
    monkeypatch.setattr(fused_triton, "pair_sums", lambda *args: calls.append(args) or pair_sums(*args))
    return calls


def on_device(pattern, tensors):
    order = None if pattern.order is None else pattern.order.to(DEVICE)
    pattern = Pattern(pattern.row.to(DEVICE), pattern.col.to(DEVICE), pattern.num_rows, pattern.num_cols, order)
    return pattern, [x.to(DEVICE) for x in tensors]


def check(kernel, pattern, tensors, kept=None, **tol):
    pattern, tensors = on_device(pattern, tensors)
    entry, bound, *qkv = tensors
    assert fused_pairs.refuses(qkv[0], qkv[2]) is None
    found = fused_sums(kernel, pattern, *tensors)
    wanted = kernel.sums_of_heads(pattern, entry, bound, *qkv, kept=kept)
    torch.testing.assert_close(found, wanted, **tol)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), **tol)
    return found


CASES = [(3, 5, 3, "heads"), (1, 8, 8, "shared"), (3, 7, 1, "shared"), (2, 3, 6, "pairs")]


@pytest.mark.parametrize(
    ("name", "own_bound", "case"),
    [(*names, case) for names, case in zip(product(KERNELS, (False, True)), 4 * CASES)],
)
def test_equals_plain_torch(name, own_bound, case, calls):
    heads, width, channels, entries = case
    pattern = random_pattern(5, 0.7, torch.randperm(5) if heads == 3 else None)
    tensors = with_sides(KERNELS[name], inputs(pattern, heads, width, channels, entries, own_bound))
    check(KERNELS[name], pattern, tensors, rtol=1e-10, atol=1e-10)
    assert len(calls) == 2


@pytest.mark.parametrize(("name", "entries"), [("softmax", "shared"), ("features_signed", "heads")])
def test_long_rows_long_columns_and_blocks_of_heads(name, entries, monkeypatch):
    monkeypatch.setattr(fused_triton, "_PAIRS", 2)
    monkeypatch.setattr(fused_triton, "_NUMBERS", 16)  # two of three heads at a time
    wide = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 0, 0]])
    for dense in (wide, wide.t()):
        pattern = Pattern(*dense.nonzero().t(), *dense.shape)
        entry, bound, q, k, v = inputs(pattern, 3, 3, 3, entries)
        q = torch.randn(dense.size(0), 3, 3, dtype=torch.float64, requires_grad=True)
        check(KERNELS[name], pattern, [entry, bound, q, k, v], rtol=1e-10, atol=1e-10)


def test_single_precision():
    pattern, kernel = random_pattern(5, 0.7), KERNELS["softmax_signed"]
    single = [x.detach().float().requires_grad_() for x in inputs(pattern, 2, 4, 4)]
    double = [x.detach().double().requires_grad_() for x in single]
    pattern, (single, double) = on_device(pattern, [])[0], (on_device(pattern, x)[1] for x in (single, double))
    found, wanted = fused_sums(kernel, pattern, *single), kernel.sums_of_heads(pattern, *double)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(found, single), gradients(wanted, double)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "both_signed"])
def test_dropout_zeroes_the_weights_that_hashes_choose(name):
    kernel, pattern, heads = KERNELS[name]._replace(dropout=0.4), random_pattern(5, 0.7), 3
    tensors = inputs(pattern, heads, 2, 3)
    draw = torch.get_rng_state()
    kept = keep_factors(0.4, draw_seeds(1), torch.arange(pattern.nnz * heads).view(-1, heads)).to(DEVICE)
    torch.set_rng_state(draw)
    check(kernel, pattern, tensors, kept, rtol=1e-10, atol=1e-10)
    assert 0 < (kept == 0).double().mean() < 1


def test_scores_of_any_size_and_entries_of_zero():
    pattern = random_pattern(5, 0.9)
    entry, _, q, k, v = (x.detach() for x in inputs(pattern, 2, 4, 4, "heads", True))
    entry = torch.where(entry < 0, 0, entry).requires_grad_()
    tensors = [entry, entry, *((x * scale).requires_grad_() for x, scale in ((q, 100), (k, 10), (v, 1)))]
    assert check(KERNELS["softmax"], pattern, tensors, rtol=1e-9, atol=1e-9).isfinite().all()


@pytest.mark.parametrize("num_rows", [0, 3])
def test_without_pairs_or_rows(num_rows):
    nothing = torch.empty(0, dtype=torch.int64)
    pattern = Pattern(nothing, nothing, num_rows, 3)
    entry, bound, q, k, v = inputs(pattern, 2, 4, 4)
    check(KERNELS["softmax"], pattern, [entry, bound, q[:num_rows], k, v], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["linear", "softmax", "additive"])
def test_nan_is_not_hidden(name):
    pattern = random_pattern(4, 0.9)
    tensors = [x.detach() for x in inputs(pattern, 1, 4, 4)]
    tensors[3][0] = torch.nan
    pattern, tensors = on_device(pattern, with_sides(KERNELS[name], tensors))
    rows = pattern.row[pattern.col == 0].long()
    assert fused_sums(KERNELS[name], pattern, *tensors)[rows].isnan().any(-1).all()


def test_graphs_in_a_batch_do_not_mix():
    block = torch.rand(3, 3) < 0.8
    pattern = Pattern(*torch.block_diag(block, block).nonzero().t(), 6, 6)
    entry, bound, *qkv = inputs(pattern, 2, 2, 2)
    pattern, (entry, bound, *qkv) = on_device(pattern, [entry, bound, *qkv])
    first = gradients(sums := fused_sums(KERNELS["softmax"], pattern, entry, bound, *qkv), qkv)
    spoilt = [torch.cat([x[:3].detach(), 1e6 * x[3:].detach()]).requires_grad_() for x in qkv]
    second = gradients(other := fused_sums(KERNELS["softmax"], pattern, entry, bound, *spoilt), spoilt)
    for a, b in zip([sums, *first], [other, *second]):
        assert torch.equal(a[:3], b[:3])  # the same program computes the same row


def test_attention_is_the_same_in_plain_torch(monkeypatch, calls):
    data = AddRandomWalks(num_walks=4, seed=0)(GRAPHS["path"].clone()).to(DEVICE)
    module = MaskedAttention(4, 2, "relu", RWGNKMask(2, learnable=True), "pairwise").double().to(DEVICE)
    x = torch.randn(data.num_nodes, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)

    def values_and_gradients():
        out = module(x, graph=data)
        return out, torch.autograd.grad(out.square().sum(), [x, *module.parameters()])

    found = values_and_gradients()
    assert len(calls) == 2
    monkeypatch.setattr(fused_pairs, "refuses", lambda *args: "for comparison")
    torch.testing.assert_close(found, values_and_gradients(), rtol=1e-9, atol=1e-10)
    assert len(calls) == 2


def test_refusals(monkeypatch):
    x = torch.zeros(3, 1, 8, device=DEVICE)
    assert "edge vectors are served on CPU only" in fused_pairs.refuses(x, x, edges=True)
    monkeypatch.undo()
    assert fused_pairs._uses_triton(x) == (DEVICE == "cuda")
