import pytest
import torch

from pyg_topomask.ops import topk_attention, topk_inner_product
from pyg_topomask.ops.attention.engines import pairs_triton
from pyg_topomask.ops.hashing import keep_factors
from pyg_topomask.ops.topk.means import kept_means
from tests.ops.compare import batch_of, with_gradients

SIZES = (20, 1, 0, 2, 130)  # graph 2 is empty
SMALL = torch.tensor([0, 0, 0, 0, 0, 1, 1])
each_recompute = pytest.mark.parametrize("recompute", [False, True])


def inputs(num, heads, *dims):
    return [torch.randn(num, heads, dim, dtype=torch.float64, requires_grad=True) for dim in dims]


def dense_attention(q, k, v, topk, batch):
    score = torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5
    score = score.masked_fill(batch[:, None] != batch, -torch.inf)
    last = score.sort(dim=-1, descending=True)[0][..., : min(topk, score.size(-1))][..., -1:]
    return (score.masked_fill(score < last, -torch.inf).softmax(-1) @ v.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("native", ["1", "0"])
@each_recompute
@pytest.mark.parametrize("topk", [1, 5, 200])
def test_attention_and_its_gradients_equal_the_dense_form(monkeypatch, topk, recompute, native):
    """With all keys, this is full softmax attention."""
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    batch, (q, k, v) = batch_of(SIZES), inputs(153, 3, 4, 4, 6)
    out = topk_attention(q, k, v, topk, batch, recompute=recompute)
    wanted = dense_attention(q, k, v, topk, batch)
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-10)
    grads = (torch.autograd.grad(x, (q, k, v), torch.ones_like(x).cumsum(0)) for x in (out, wanted))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-10)


@each_recompute
def test_first_and_second_derivatives(recompute):
    given = inputs(7, 1, 2, 2, 2)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *x: topk_attention(*x, 3, SMALL, recompute=recompute), given)


def test_attention_keeps_no_more_places_than_there_are_keys():
    batch, (q, k, v) = batch_of((2, 90, 1)), inputs(93, 2, 3, 3, 3)
    out = topk_attention(q, k, v, 10**12, batch)
    torch.testing.assert_close(out, dense_attention(q, k, v, 90, batch))
    alone = topk_attention(q[:2], k[:2], v[:2], 20, backend="torch")
    assert torch.equal(alone, topk_attention(q, k, v, 20, batch, backend="torch")[:2])  # few places cost nothing
    values, index = topk_inner_product(q, k, 300, batch)
    assert values.shape == index.shape == (93, 2, 300)


def test_attention_without_numbers_is_refused():
    with pytest.raises(ValueError, match=r"at least one channel per head \(got \[4, 1, 0\]\)"):
        topk_attention(torch.zeros(4, 1, 0), torch.zeros(4, 1, 0), torch.ones(4, 1, 2), 2)


@pytest.mark.parametrize("sizes", [SIZES, (40, 60)])
def test_dropout_is_unbiased_and_the_same_without_a_compiler(monkeypatch, sizes):
    q, k, v = inputs(sum(sizes), 2, 3, 3, 3)
    found = []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        torch.manual_seed(0)
        found.append(topk_attention(q, k, v, 7, batch_of(sizes), dropout=0.4))
    torch.testing.assert_close(*found)
    assert not torch.allclose(found[0], topk_attention(q, k, v, 7, batch_of(sizes)))
    out = topk_attention(torch.randn(4000, 1, 4), torch.randn(4000, 1, 4), torch.ones(4000, 1, 1), 8, dropout=0.25)
    assert abs(float(out.mean()) - 1) < 0.02  # kept weights are scaled by 4/3


@each_recompute
def test_no_number_of_each_pair_is_kept(recompute):
    q, k, v = (torch.randn(500, 2, 4).requires_grad_() for _ in range(3))
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.__setitem__(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) or x, lambda x: x
    ):
        topk_attention(q, k, v, 20, batch_of((200, 300)), recompute=recompute)
    given = 3 * q.numel() * 4
    if recompute:
        assert sum(kept.values()) == given
    else:  # columns of the pairs, row pointers, copies of the inputs, and results of nodes
        assert sum(kept.values()) <= 500 * 2 * 20 * 4 + 2 * given


@pytest.mark.parametrize("cut", [4, 1024])
@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float64, 0.0), (torch.float32, 0.0), (torch.float64, 0.4)])
def test_kernels_for_cuda_equal_the_dense_form(dtype, dropout, cut, monkeypatch):
    """All queries of a graph keep one key, whose queries are cut; equal keys tie, and the second graph lacks a key."""
    pytest.importorskip("triton", reason="Triton is only published for Linux")
    monkeypatch.setattr(pairs_triton, "CUT", cut)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (x.detach().to(dtype) for x in inputs(7, 2, 3, 3, 5))
    q, k[0], k[3] = q.abs(), 5, k[2]
    given = [x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in (q, k, v)]  # with strides
    index = topk_inner_product(q, k, 3, SMALL)[1].transpose(0, 1)
    seed = torch.tensor([7]) if dropout else None
    chosen = (index[..., None] == torch.arange(7)).double()  # [H, N, topk, N]
    score = torch.einsum("ihr,jhr->hij", *(x.double() for x in given[:2])) * 3**-0.5
    weight = score.masked_fill(chosen.sum(2) == 0, -torch.inf).softmax(-1)
    if dropout:
        weight = weight * (chosen * keep_factors(dropout, seed, torch.arange(42).view(2, 7, 3))[..., None]).sum(2)
    wanted = with_gradients((weight @ given[2].double().transpose(0, 1)).transpose(0, 1), given)
    there = [x.detach().to(device).requires_grad_() for x in given]
    rest = index.to(device), seed if seed is None else seed.to(device), dropout, 5
    assert kept_means.refuses(*there, *rest) is None
    for run in (kept_means, kept_means.twin):
        for a, b in zip(with_gradients(run(*there, *rest), there), wanted, strict=True):
            tolerance = 1e-10 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(a.cpu().double(), b.double(), rtol=tolerance, atol=tolerance)
    assert (index[:, 5:, 2] == -1).all()
    assert (index[:, :5] == 0).any(-1).all()
