"""Attention on pairs and in blocks by Triton's kernels, in its interpreter where there is no GPU.

The interpreter takes 0.01 to 0.05 s for a row and a head, so that patterns are tiny.
"""

import pytest
import torch

from pyg_topomask.operators import SparseOperator
from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention import choice
from pyg_topomask.ops.attention.block_means import block_means
from pyg_topomask.ops.attention.engines import blocks_triton, pairs_triton
from pyg_topomask.ops.attention.engines.pairs_triton import PairSums, _pair_sums
from pyg_topomask.ops.attention.kernels import EdgeVectors
from pyg_topomask.ops.attention.mask import PatternMask
from pyg_topomask.ops.sparse import Pattern
from tests.ops.attention.cases import KERNELS, MASKS, Mask, draw, problem_of, reference, remade, small_masks
from tests.ops.compare import with_gradients

pytest.importorskip("triton", reason="Triton is only published for Linux")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES, BOTH = ("linear", "softmax", "additive"), ("pairs_triton", "pairs")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The runs of kernels that were asked for."""
    calls, run = [], PairSums.run
    monkeypatch.setattr(PairSums, "run", lambda self, *args: calls.append(args) or run(self, *args))
    return calls


def check(kernel, mask, dtype=torch.float64, tolerance=1e-10, engine=pairs_triton, **sizes):
    """The engine gives the outputs and gradients of the definition in float64."""
    problem, inputs = problem_of(kernel, mask, **sizes)
    wanted = with_gradients(reference(problem), inputs)
    given = [x.detach().to(DEVICE, dtype).requires_grad_() for x in inputs]
    batch = mask.batch.to(DEVICE)
    found = with_gradients(engine.attend(remade(kernel, mask._replace(batch=batch), *given)), given)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.cpu().double(), b, rtol=tolerance, atol=tolerance * max(1, float(b.abs().max())))
    return found


def on_pairs(rows, *heads, positive=False):
    """A mask on random pairs, with entries of all heads or of each."""
    torch.manual_seed(0)
    index = (torch.rand(rows, rows) < 0.7).nonzero().t()
    index = index[:, index[0] != 1]  # a row without pairs
    entries = draw(index.size(1), *heads, positive=positive)
    return Mask(lambda x: SparseOperator(index.to(x.device), x, rows), [entries], torch.zeros(rows).long())


@pytest.mark.parametrize("own_bound", [False, True])
@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_definition(name, heads, own_bound, calls):
    check(KERNELS[name], on_pairs(5, *heads, positive=own_bound), width=5, channels=3)
    assert len(calls) == 2  # a forward and a backward pass


# Heads, features and channels of configs: some of them need several blocks of heads.
SHIPPED = [(4, 64, 16), (1, 8, 8), (3, 7, 1), (4, 16, 24), (8, 16, 16)]


@pytest.mark.parametrize(("heads", "width", "channels"), SHIPPED)
def test_heads_of_configs(heads, width, channels):
    """The number of heads of a program is a power of two, which Triton asks for."""
    for name in ("linear", "softmax") if width < 64 else ("linear",):
        check(KERNELS[name], on_pairs(3), torch.float32, 1e-4, heads=heads, width=width, channels=channels)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "entries"), [("softmax", ()), ("linear", (3,)), ("additive", (3,))])
def test_long_rows_long_columns_and_blocks_of_heads(name, entries, monkeypatch):
    monkeypatch.setattr(pairs_triton, "PAIRS", 2)
    monkeypatch.setattr(pairs_triton, "_NUMBERS", 16)  # two of three heads at a time
    for cut in (3, 1024):  # of which a row or a column has several, or there is none
        monkeypatch.setattr(pairs_triton, "CUT", cut)
        check(KERNELS[name], on_pairs(6, *entries), heads=3, width=3, channels=3)


@pytest.mark.parametrize("cut", [3, 6])
def test_sizes_and_nothing_to_combine_where_no_row_is_cut(cut, monkeypatch):
    """No row of a graph of 6 nodes is cut at a place that is a multiple of 6."""
    names, launch = [], triton_support.launch
    monkeypatch.setattr(
        triton_support, "launch", lambda *x, **y: names.append(x[1] * (0 not in x[2])) or launch(*x, **y)
    )
    monkeypatch.setattr(pairs_triton, "CUT", cut)
    mask = on_pairs(6, positive=True)
    _, inputs = problem_of(KERNELS["linear"], mask, width=2, channels=2)
    q, k, _, entries = inputs
    wanted = with_gradients(torch.einsum("ihr,jhr,ij->ih", q, k, mask.make(entries).to_dense()), [q, k, entries])
    given = [x.detach().to(DEVICE).requires_grad_() for x in inputs]
    mask = mask._replace(batch=mask.batch.to(DEVICE))
    size = choice.ENGINES["pairs_triton"].with_size(remade(KERNELS["linear"], mask, *given))[1]
    for a, b in zip(with_gradients(size, [given[0], given[1], given[3]]), wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-10, atol=1e-10)
    assert ("combine" in names) == (cut == 3)
    assert {"forward", "backward_rows", "backward_columns"} <= {*names}


def test_scores_of_any_size_and_stored_zeros():
    index, value = torch.ones(4, 4).nonzero().t(), torch.tensor([0.0, 1, 2, 0.5]).repeat(4)
    q, k, v = (draw(4, 2, 3).mul(size).to(DEVICE).requires_grad_() for size in (300, 1, 1))
    value = value.double().to(DEVICE).requires_grad_()
    given = [q, k, v, value]
    mask = Mask(lambda x: SparseOperator(index.to(DEVICE), x, 4), (), torch.zeros(4).long().to(DEVICE))
    problem = remade(KERNELS["softmax"], mask, *given)
    found, wanted = (with_gradients(choice.ENGINES[name].attend(problem), given) for name in BOTH)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
def test_vectors_of_edges(own, monkeypatch):
    """That edges share, or half of the edges have one each."""
    monkeypatch.setattr(pairs_triton, "CUT", 4)
    pattern = Pattern(*(torch.rand(5, 5) < 0.7).nonzero().t().to(DEVICE), 5, 5, torch.randperm(5).to(DEVICE))
    of_pair = torch.randint(3, (pattern.nnz,), dtype=torch.int32)
    if own:
        of_pair[::2] = 3 + torch.arange(len(of_pair[::2]), dtype=torch.int32)
    vectors = draw(1 + int(of_pair.max()), 2, 3)
    given = [x.to(DEVICE).requires_grad_() for x in (draw(5, 2, 3), draw(5, 2, 3), draw(5, 2, 4), vectors)]
    edges = EdgeVectors(given[3], of_pair.to(DEVICE), 3)
    problem = KERNELS["softmax"].of(*given[:3], PatternMask(pattern), edges=edges)
    found, wanted = (with_gradients(choice.ENGINES[name].attend(problem), given) for name in BOTH)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.float64, 1), *((x, y) for x in (torch.bfloat16, torch.float16) for y in (0, 1, 2))]
)
def test_equals_the_twin_in_any_precision_with_dropout(dtype, kernel, monkeypatch):
    """Dropout zeroes the weights that hashes choose. Half precision is summed in float32, and gradients round once."""
    monkeypatch.setattr(pairs_triton, "CUT", 4)
    pattern = Pattern(*(torch.rand(5, 5) < 0.7).nonzero().t(), 5, 5)
    arrays = [draw(3, pattern.nnz).abs(), *(draw(5, 3, size).abs().to(dtype) for size in (5, 5, 3))]
    arrays[0] = arrays[0].to(torch.promote_types(dtype, torch.float32))
    arrays = [x.to(DEVICE).requires_grad_() for x in arrays]
    arrays += [draw(2, 3, 5).to(arrays[0]).requires_grad_()] * (kernel == 1)
    edge, of_pair = (arrays[4], torch.arange(pattern.nnz).int().to(DEVICE) % 2) if kernel == 1 else (None, None)
    where = pattern.rowptr.to(DEVICE), pattern.col.to(DEVICE)
    rest = None, edge, *where, of_pair, torch.tensor([7]), kernel, 0.2, 0.4, 5
    found, wanted = (with_gradients(run(*arrays[:4], *rest)[0], arrays) for run in (_pair_sums, _pair_sums.twin))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        tolerance = max((20 if a.dtype == torch.float32 else 2) * torch.finfo(a.dtype).eps, 1e-10)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert found[0].dtype == arrays[0].dtype
    kept, _ = _pair_sums(*arrays[:4], *rest[:5], None, *rest[6:])
    assert (found[0] - kept).abs().max() > 0.01


@pytest.mark.parametrize("num_rows", [0, 3])
def test_without_pairs_or_rows(num_rows):
    nothing = torch.empty(0, dtype=torch.int64)
    pattern = Pattern(nothing, nothing, num_rows, 3)
    arrays = [draw(2, 0), draw(num_rows, 2, 4), draw(3, 2, 4), draw(3, 2, 2)]
    arrays = [x.to(DEVICE).requires_grad_() for x in arrays]
    where = pattern.rowptr.to(DEVICE), pattern.col.to(DEVICE)
    out, _ = _pair_sums(*arrays, None, None, *where, None, None, 1, 0.2, 0.0, 3)
    assert out.shape == (num_rows, 2, 3)
    assert not any(x.any() for x in with_gradients(out, arrays))


@pytest.mark.parametrize("name", NAMES)
def test_graphs_do_not_mix_and_nan_is_not_hidden(name):
    mask = small_masks()["sparse"]
    _, inputs = problem_of(KERNELS[name], mask, width=2, channels=2)
    inputs = [x.detach().to(DEVICE).requires_grad_() for x in inputs]
    mask = mask._replace(batch=mask.batch.to(DEVICE))
    found = []
    for spoil in (1, 1e6, torch.nan):
        spoilt = [torch.cat([x[:3], spoil * x[3:]]).detach().requires_grad_() for x in inputs[:3]]
        out = pairs_triton.attend(remade(KERNELS[name], mask, *spoilt, inputs[3]))
        grads = torch.autograd.grad(out[:3].square().sum(), spoilt)
        found.append([x[:3] for x in (out, *grads)])
        assert spoil == spoil or out[3:].isnan().all()
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


BLOCKS = [x for x in block_means.examples() if x[3] is not None]
"""Blocks that heads or graphs share, with and without signs and errors, of graphs of several tiles, and of none."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_equal_plain_torch(number, dtype, monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    arrays = [x if x is None else x.to(DEVICE, dtype) for x in BLOCKS[number][:6]]
    moving = [x.requires_grad_() for x in arrays[:5] if x is not None]
    results = []
    for op in (blocks_triton._block_means, block_means):
        out, size, *_ = op(*arrays, *BLOCKS[number][6:8], 1.0, 0)
        loss = out.sin().sum() + ((size * out.detach()[..., 0]).sum() if size.requires_grad else 0)
        results.append([out, size, *torch.autograd.grad(loss, moving)])
    for a, b in zip(*results, strict=True):
        tolerance = (1e-11 if dtype == torch.float64 else 2e-5) * max([1.0, *b.detach().abs().flatten().tolist()])
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["heat", "series", "low_rank", "forest", "tree_heads", "toeplitz_heads"])
def test_blocks_equal_the_definition(name):
    if DEVICE == "cuda":
        pytest.skip("the masks of the cases lie on CPU")
    check(KERNELS["linear"], MASKS[name], engine=blocks_triton)


def test_blocks_of_other_graphs_change_no_bit_and_nan_is_not_hidden():
    table, found = torch.tensor([[0, 5, 0, 10], [5, 10, 100, 10]]), []
    given = [torch.rand(15, 2, size, device=DEVICE) for size in (3, 3, 2)] + [torch.randn(2, 200, device=DEVICE)]
    for spoil in (1.0, 1e6, torch.nan):
        q, k, v, entry = (torch.cat([x[:, :100], spoil * x[:, 100:]], 1) if x.dim() == 2 else x.clone() for x in given)
        q[5:] *= spoil
        moving = [x.requires_grad_() for x in (q, k, v)]
        out = blocks_triton._block_means(*moving, entry, entry.detach().abs(), None, table, True, 1.0, 0)[0]
        found.append([out[:5], *(x[:5] for x in torch.autograd.grad(out[:5].sum(), moving))])
        assert spoil == spoil or out[5:].isnan().all()
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


def test_nan_of_a_value_reaches_the_gradients_of_its_own_entries_alone(monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    table, spoilt = torch.tensor([[0, 5, 0, 5]]), []
    q, k, v = (torch.rand(5, 2, size, device=DEVICE) for size in (3, 3, 2))
    entry, v[3] = torch.randn(2, 25, device=DEVICE, requires_grad=True), torch.nan
    for op in (blocks_triton._block_means, block_means):
        out = op(q, k, v, entry, entry.detach().abs(), None, table, True, 1.0, 0)[0]
        spoilt.append(torch.autograd.grad(out.sum(), entry)[0].isnan().view(2, 5, 5))
    assert torch.equal(*spoilt)
    assert spoilt[0].sum() == 2 * 5  # one for each head and receiver


def test_blocks_refuse_what_they_do_not_serve():
    q = torch.ones(2, 1, 4)
    refuses, rest = blocks_triton._block_means.refuses, (q, q, None, None, None, torch.tensor([[0, 2, 0, 2]]), True)
    assert "all keys under a mask" in refuses(q, *rest, 1.0, 1)
    assert all("160 with keys" in refuses(torch.ones(2, 1, n), q, torch.ones(2, 1, m)) for n, m in ((4, 65), (129, 4)))
