import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import GRFMask
from pyg_topomask.operators import (
    DenseOperator,
    HeadStackOperator,
    OnesOperator,
    SparseFactorOperator,
)
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention import masked_linear as masked_attention
from pyg_topomask.ops.walks import pair_table as pairs
from pyg_topomask.testing import permute
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.typing import PerformanceWarning
from tests.ops.attention.pair_cases import ring

LINEAR = ("factored", "pairwise", "blocks", "dense")
K = 3


def reference(q, k, v, mask, kernel=lambda s: s, bound=None):
    """Definition, head by head of dense masks [N, N] or [H, N, N]; the signed one without a bounding mask."""
    heads = []
    for h in range(q.size(1)):
        entry, size = (m if m.dim() == 2 else m[h] for m in (mask, mask if bound is None else bound))
        score = kernel(q[:, h] @ k[:, h].t())
        heads.append((entry * score / (size * score).sum(1, keepdim=True)) @ v[:, h])
    return torch.stack(heads, 1)


def modulation_of(heads, dtype, negative):
    base = torch.tensor([1.0, 0.4, 0.2, 0.1], dtype=dtype)
    if negative:
        base = torch.tensor([1.5, -0.1, 0.1, -0.05], dtype=dtype)
    if heads is None:
        return base
    return torch.stack([base * (1 + 0.1 * h) ** torch.arange(4) for h in range(heads)])


def walked(data, dtype):
    """The GRF operator of a graph as a function of the modulation, which becomes a plain tensor."""
    mask = GRFMask(max_length=K).to(dtype)
    del mask.modulation

    def operator(modulation):
        mask.modulation = modulation
        return mask(data)

    return operator


@pytest.fixture(params=[False, True], ids=["whole", "sliced"])
def sliced(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(masked_attention, "_SLICE_NUMEL", 1)
        monkeypatch.setattr(masked_attention, "_SLICE_COLUMNS", 1)
        monkeypatch.setattr(pairs, "_TERMS_PER_BLOCK", 7)


@pytest.mark.parametrize("stored", [False, True], ids=["walks", "stored_pairs"])
@pytest.mark.parametrize(
    ("negative", "normalizer"),
    [(False, "bound"), (True, "bound"), (True, "signed")],
    ids=["positive", "bound", "signed"],
)
@pytest.mark.parametrize(("heads", "per_head"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_paths_agree_in_value_and_in_every_gradient(sliced, stored, negative, normalizer, heads, per_head, dtype, tol):
    data = ring(11, pair_table=stored)
    operator = walked(data, dtype)
    f = modulation_of(heads if per_head else None, dtype, negative).requires_grad_()
    q, k = (torch.rand(11, heads, 5, dtype=dtype).add(0.1).requires_grad_() for _ in range(2))
    v = torch.randn(11, heads, 3, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, heads, 3, dtype=dtype)

    def result(out):
        return out, *torch.autograd.grad((out * weight).sum(), (q, k, v, f))

    if negative:
        assert (operator(f).to_dense() < 0).any()
    bound = operator(f).bound.to_dense() if normalizer == "bound" else None
    wanted = result(reference(q, k, v, operator(f).to_dense(), bound=bound))
    for path in LINEAR:
        got = result(masked_linear_attention(q, k, v, operator(f), path=path, normalizer=normalizer))
        for a, b in zip(got, wanted):
            assert (a - b).norm() <= tol * b.norm(), path


@pytest.mark.parametrize("path", LINEAR)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("normalizer", ["bound", "signed"])
def test_gradcheck_of_each_path(path, per_head, normalizer):
    data = ring(5, num_walks=3)
    operator = walked(data, torch.float64)
    inputs = [torch.rand(5, 2, c, dtype=torch.float64).add(0.2) for c in (2, 2, 3)]
    f = modulation_of(2 if per_head else None, torch.float64, True)

    def run(q, k, v, f):
        return masked_linear_attention(q, k, v, operator(f), path=path, normalizer=normalizer)

    assert torch.autograd.gradcheck(run, tuple(x.requires_grad_() for x in (*inputs, f)))


def test_gradcheck_unmasked():
    batch = torch.tensor([0, 0, 0, 2, 2])
    inputs = tuple(torch.rand(5, 2, c, dtype=torch.float64).add(0.2).requires_grad_() for c in (2, 2, 3))
    assert torch.autograd.gradcheck(lambda q, k, v: masked_linear_attention(q, k, v, None, batch), inputs)
    assert torch.autograd.gradcheck(lambda q, k, v: masked_softmax_attention(q, k, v, None, batch), inputs)


def test_value_is_the_definition():
    q, k = (torch.rand(6, 2, 3, dtype=torch.float64) for _ in range(2))
    v, matrix = torch.randn(6, 2, 4, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    for mask in (DenseOperator(matrix), matrix):
        for path in ("auto", "factored", "dense"):
            out = masked_linear_attention(q, k, v, mask, path=path)
            torch.testing.assert_close(out, reference(q, k, v, matrix), rtol=1e-12, atol=1e-12)
    stacked = torch.rand(2, 6, 6, dtype=torch.float64)
    out = masked_linear_attention(q, k, v, DenseOperator(stacked))
    torch.testing.assert_close(out, reference(q, k, v, stacked), rtol=1e-12, atol=1e-12)


def test_package_reference_is_the_definition():
    q, k = (torch.rand(6, 2, 3, dtype=torch.float64) for _ in range(2))
    v, matrix = torch.randn(6, 2, 4, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    out = masked_attention.masked_linear_attention_reference(q, k, v, matrix)
    torch.testing.assert_close(out, reference(q, k, v, matrix), rtol=1e-12, atol=1e-12)
    batch = torch.tensor([0, 0, 0, 0, 1, 1])
    out = masked_attention.masked_linear_attention_reference(q, k, v, None, batch)
    same = (batch[:, None] == batch).double()
    torch.testing.assert_close(out, reference(q, k, v, same), rtol=1e-12, atol=1e-12)


def softmax_weights(q, k):
    return torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5


@pytest.mark.parametrize("path", ["auto", "pairwise", "dense"])
@pytest.mark.parametrize("per_head", [False, True])
def test_softmax_attention_is_the_definition(path, per_head):
    n, heads = 7, 2
    q, k, v = (torch.randn(n, heads, c, dtype=torch.float64, requires_grad=True) for c in (3, 3, 4))
    matrix = torch.rand(n, n, dtype=torch.float64) * (torch.rand(n, n) > 0.5) + torch.eye(n)
    index = matrix.nonzero().t()
    value = matrix[index[0], index[1]]
    if per_head:
        value = torch.stack([value, value.flip(0)], 1)
    value.requires_grad_()
    mask = SparseFactorOperator((index, value), None, n)
    out = masked_softmax_attention(q, k, v, mask, path=path)
    wanted = reference(q, k, v, mask.to_dense(), lambda s: (s * 3**-0.5).exp())
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-12)
    weight, inputs = torch.randn_like(out), (q, k, v, value)
    grads = torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True)
    for a, b in zip(grads, torch.autograd.grad((wanted * weight).sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    if path != "auto":
        run = lambda q, k, v, value: masked_softmax_attention(  # noqa: E731
            q, k, v, SparseFactorOperator((index, value), None, n), path=path
        )
        assert torch.autograd.gradcheck(run, inputs)


def test_softmax_attention_without_a_mask_is_softmax_per_graph():
    sizes = [3, 1, 0, 5]
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    q, k, v = (torch.randn(9, 2, c, dtype=torch.float64) for c in (3, 3, 4))
    out = masked_softmax_attention(q, k, v, None, batch)
    score = softmax_weights(q, k).masked_fill(batch[:, None] != batch, -torch.inf)
    torch.testing.assert_close(out, (torch.softmax(score, -1) @ v.transpose(0, 1)).transpose(0, 1))
    whole = (torch.softmax(softmax_weights(q, k), -1) @ v.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(masked_softmax_attention(q, k, v), whole)
    empty = torch.ones(0, 2, 3)
    assert masked_softmax_attention(empty, empty, empty).shape == (0, 2, 3)


def test_softmax_attention_warns_where_it_goes_dense():
    x = torch.randn(4, 1, 3)
    mask = OnesOperator(torch.tensor([0, 0, 1, 1]))
    with pytest.warns(PerformanceWarning, match="dense"):
        out = masked_softmax_attention(x, x, x, mask)
    torch.testing.assert_close(out, masked_softmax_attention(x, x, x, None, mask.batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked_softmax_attention(x, x, x, mask, path="dense")
        masked_softmax_attention(x, x, x, DenseOperator(torch.ones(4, 4)))


def ragged(dtype):
    """Rings of several sizes, some of them equal and out of order, and a lone node: (batch, q, k, v)."""
    batch = Batch.from_data_list([ring(n, num_walks=12) for n in (5, 3, 9, 5, 4, 3, 5)] + [walked_single()])
    n = batch.num_nodes
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(n, 2, c, dtype=dtype, generator=generator).add(0.1).requires_grad_() for c in (4, 4, 3))
    return batch, q, k, v


def walked_single():
    return AddRandomWalks(max_length=K, seed=0)(
        Data(x=torch.randn(1, 4), edge_index=torch.zeros(2, 0).long(), num_nodes=1)
    )


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("function", [masked_linear_attention, masked_softmax_attention])
def test_blocks_of_a_batch_equal_pairs_in_value_and_gradient(function, per_head):
    batch, q, k, v = ragged(torch.float64)
    f = modulation_of(2 if per_head else None, torch.float64, True).requires_grad_()
    results = []
    for path in ("pairwise", "blocks"):
        out = function(q, k, v, walked(batch, torch.float64)(f), batch.batch, path)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v, f))))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("path", ["pairwise", "blocks"])
def test_gradients_stay_finite_where_all_keys_in_sight_are_tiny(path):
    data = ring(12, num_walks=12)
    mask = GRFMask(max_length=K)(data)
    q = torch.rand(12, 1, 2) + 0.5
    for exponent in (-60, -100, -126, -140):
        k = torch.full((12, 1, 2), 2.0**exponent)
        k[0] = 1  # one loud key, which most nodes do not see
        q, k = q.requires_grad_(), k.requires_grad_()
        v = torch.randn(12, 1, 3, requires_grad=True)
        out = masked_linear_attention(q, k, v, mask, path=path)
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(x.isfinite().all() for x in (out, *grads))
        if exponent == -60:
            exact = (x.detach().double() for x in (q, k, v))
            wanted = masked_attention.masked_linear_attention_reference(*exact, mask.to_dense().double())
            torch.testing.assert_close(out, wanted.float(), rtol=1e-4, atol=1e-5)


def test_blocks_refuse_a_batch_that_splits_a_graph():
    q, k, v = (torch.rand(6, 1, 2) for _ in range(3))
    mask = GRFMask(max_length=K)(ring(6))
    with pytest.raises(ValueError, match=r"joins nodes \d+ and \d+ of different graphs"):
        masked_linear_attention(q, k, v, mask, torch.tensor([0, 0, 0, 1, 1, 1]), "blocks")
    with pytest.raises(ValueError, match="blocks of graphs; OnesOperator has none"):
        masked_linear_attention(q, k, v, OnesOperator(torch.zeros(6, dtype=torch.long)), path="blocks")


def test_entries_that_are_zero_have_a_gradient_on_the_dense_path():
    mask = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.3, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.rand(3, 1, 2, dtype=torch.float64) for _ in range(3))
    wanted = masked_attention.masked_linear_attention_reference(q, k, v, mask)
    (wanted,) = torch.autograd.grad(wanted.square().sum(), mask)
    assert wanted[0, 1] != 0
    out = masked_linear_attention(q, k, v, mask, path="dense")
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), mask)[0], wanted)


def test_head_stack_and_shared_mask_agree():
    matrix = torch.rand(5, 5, dtype=torch.float64)
    q, k, v = (torch.rand(5, 2, 3, dtype=torch.float64) for _ in range(3))
    shared = masked_linear_attention(q, k, v, DenseOperator(matrix))
    stack = masked_linear_attention(q, k, v, HeadStackOperator([DenseOperator(matrix)] * 2), path="factored")
    torch.testing.assert_close(stack, shared)


def test_relabelled_walks_relabel_the_result():
    data, perm = ring(9, pair_table=True), torch.randperm(9)
    q, k, v = (torch.rand(9, 1, 3, dtype=torch.float64) for _ in range(3))
    mask = GRFMask(max_length=K).double()
    for path in LINEAR:
        out = masked_linear_attention(q, k, v, mask(data), path=path)
        moved = masked_linear_attention(q[perm], k[perm], v[perm], mask(permute(data, perm)), path=path)
        torch.testing.assert_close(moved, out[perm], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "path", "error", "message"),
    [
        (
            (4, 2, 3),
            (4, 2, 2),
            (4, 2, 3),
            None,
            "auto",
            ValueError,
            r"must be \[N, H, R\].*got \[4, 2, 3\], \[4, 2, 2\]",
        ),
        ((4, 6), (4, 6), (4, 6), None, "auto", ValueError, r"must be \[N, H, R\]"),
        ((4, 2, 3), (4, 2, 3), (5, 2, 3), None, "auto", ValueError, r"and \[5, 2, 3\]"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(5, 5), "auto", ValueError, "for 5 nodes, but 'q' has 4 rows"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(3, 4, 4), "auto", ValueError, "3 heads, but 'q' has 2"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(4, 4), "fast", ValueError, "auto, factored.*got 'fast'"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(4, 4), "pairwise", ValueError, "sparse support"),
    ],
)
def test_bad_arguments_are_refused(q, k, v, mask, path, error, message):
    mask = None if mask is None else DenseOperator(mask)
    with pytest.raises(error, match=message):
        masked_linear_attention(torch.ones(q), torch.ones(k), torch.ones(v), mask, path=path)


def test_bad_types_and_paths_are_refused():
    x = torch.ones(4, 1, 2)
    with pytest.raises(TypeError, match="share one floating dtype"):
        masked_linear_attention(x, x, x.double())
    with pytest.raises(TypeError, match="floating dtype"):
        masked_linear_attention(x.long(), x.long(), x.long())
    with pytest.raises(ValueError, match=r"'path' must be one of auto, pairwise, blocks, dense \(got 'factored'\)"):
        masked_softmax_attention(x, x, x, DenseOperator(torch.ones(4, 4)), path="factored")


def test_softmax_without_channels_is_refused():
    empty, v = torch.ones(4, 1, 0), torch.ones(4, 1, 2)
    for mask in (None, DenseOperator(torch.ones(4, 4))):
        with pytest.raises(ValueError, match=r"at least one channel per head \(got \[4, 1, 0\]\)"):
            masked_softmax_attention(empty, empty, v, mask)


def test_bad_paths_are_refused_without_a_mask():
    x = torch.ones(4, 1, 2)
    with pytest.raises(ValueError, match="got 'nonsense'"):
        masked_linear_attention(x, x, x, None, path="nonsense")
    with pytest.raises(ValueError, match="got 'nonsense'"):
        masked_softmax_attention(x, x, x, None, path="nonsense")
