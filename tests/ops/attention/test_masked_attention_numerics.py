"""Masked attention where numbers are very large, very small, zero, or of half precision."""

import pytest
import torch

from pyg_topomask.operators import DenseOperator, SparseFactorOperator
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention import masked_linear as masked_attention

LINEAR = ("factored", "pairwise", "blocks", "dense")
NORMALIZERS = ("bound", "signed")


def sparse_operator(matrix):
    index = matrix.detach().nonzero().t()
    return SparseFactorOperator((index, matrix[index[0], index[1]]), None, matrix.size(0))


def vanishing():
    """(q, k, matrix, rows that must be zero) by name."""
    n = 5
    q, k = torch.rand(n, 1, 3).double() + 0.1, torch.rand(n, 1, 3).double() + 0.1
    matrix = torch.rand(n, n).double() + 0.1
    zero_q, zero_k = q.clone(), torch.zeros_like(k)
    zero_q[2] = 0
    cancel = matrix.clone()
    cancel[1] = 0
    cancel[1, 3], cancel[1, 4] = 1.0, -1.0
    k_equal = k.clone()
    k_equal[3] = k_equal[4]
    hollow = matrix.clone()
    hollow[4] = 0
    return {
        "zero_query": (zero_q, k, matrix, [2]),
        "zero_keys": (q, zero_k, matrix, [0, 1, 2, 3, 4]),
        "cancelling": (q, k_equal, cancel, [1]),
        "empty_row": (q, k, hollow, [4]),
    }


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("path", LINEAR)
@pytest.mark.parametrize(
    ("case", "normalizer"),
    [
        *((case, name) for case in ("zero_query", "zero_keys", "empty_row") for name in NORMALIZERS),
        ("cancelling", "signed"),
    ],
)
def test_vanished_denominators_give_zeros_and_finite_gradients(case, normalizer, path, scale):
    q, k, matrix, rows = vanishing()[case]
    inputs = [x.clone().requires_grad_() for x in (scale * q, k, torch.randn(5, 1, 2).double(), scale * matrix)]
    q, k, v, m = inputs
    wanted = masked_attention.masked_linear_attention_reference(q, k, v, m, normalizer=normalizer, tolerance=1e-12)
    out = masked_linear_attention(q, k, v, sparse_operator(m), path=path, normalizer=normalizer)
    assert (out[rows] == 0).all()  # set to zero, not computed
    others = [i for i in range(5) if i not in rows]
    assert (out[others] != 0).all()
    grads = torch.autograd.grad(out.square().sum() + out.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    again = masked_linear_attention(q, k, v, sparse_operator(m), path=path, normalizer=normalizer)
    grads = torch.autograd.grad(again[rows].sum(), inputs)
    assert all((grad == 0).all() for grad in grads)  # a constant row has no gradient
    if others:
        torch.testing.assert_close(out[others], wanted[others], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("path", LINEAR)
def test_a_denominator_of_rounding_alone_vanishes(path):
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[1] = torch.tensor([0, 0, 0.1, 0.2, -0.3], dtype=torch.float64)  # they sum to 5.6e-17
    half = torch.full((5, 1, 3), 0.5, dtype=torch.float64)
    mask, v = sparse_operator(matrix), torch.randn(5, 1, 2).double()
    out = masked_linear_attention(half, half, v, mask, path=path, normalizer="signed")
    assert (out[1] == 0).all()
    assert (out[[0, 2, 3, 4]] != 0).all()
    assert (masked_linear_attention(half, half, v, mask, path=path) != 0).all()  # |0.1| + |0.2| + |-0.3| is not small


def test_vanished_denominators_without_a_mask():
    q, k = torch.randn(6, 1, 3).double(), torch.randn(6, 1, 3).double()
    k[:2] = torch.stack([k[0], -k[0]])  # graph 0 cancels
    q[3] = 0
    batch = torch.tensor([0, 0, 1, 1, 1, 1])
    v = torch.randn(6, 1, 2).double()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = masked_linear_attention(*inputs, None, batch, normalizer="signed")
    assert (out[[0, 1, 3]] == 0).all()
    assert (out[[2, 4, 5]] != 0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), inputs))


@pytest.mark.parametrize("path", LINEAR)
@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_scale_of_mask_and_features_cancels(path, case, scale):
    n = 6
    q, k, matrix = torch.rand(n, 2, 3).add(0.1), torch.rand(n, 2, 3).add(0.1), torch.rand(n, n)
    matrix = matrix * (torch.rand(n, n) > 0.3) + torch.eye(n)
    matrix[0, 1] = -0.5
    v = torch.randn(n, 2, 3)
    wanted = masked_linear_attention(q, k, v, sparse_operator(matrix), path=path)
    scaled = [q, k, matrix]
    scaled[case] = scale * scaled[case]
    q, k, matrix = scaled
    out = masked_linear_attention(q, k, v, sparse_operator(matrix), path=path)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
    assert (out != 0).all()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_cancels_without_a_mask(scale):
    q, k, v = torch.rand(6, 2, 3).add(0.1), torch.rand(6, 2, 3).add(0.1), torch.randn(6, 2, 3)
    wanted = masked_linear_attention(q, k, v)
    torch.testing.assert_close(masked_linear_attention(scale * q, k, v), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(masked_linear_attention(q, scale * k, v), wanted, rtol=1e-5, atol=1e-6)


def test_a_large_score_at_a_stored_zero_does_not_count():
    q, k, v = torch.ones(2, 1, 1), torch.tensor([[[1.0]], [[500.0]]]), torch.tensor([[[1.0]], [[2.0]]])
    index = torch.tensor([[0, 0, 1], [0, 1, 0]])
    mask = SparseFactorOperator((index, torch.tensor([1.0, 0.0, 1.0])), None, 2)
    assert masked_softmax_attention(q, k, v, mask, path="pairwise").flatten().tolist() == [1.0, 1.0]


def test_half_precision_is_computed_in_float32():
    q, k, v = (torch.rand(300, 1, 4).bfloat16() for _ in range(3))
    for function in (masked_linear_attention, masked_softmax_attention):
        out = function(q, k, v)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, function(q.float(), k.float(), v.float()).bfloat16())


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30, 1e-290, 1e290])
@pytest.mark.parametrize("path", ["unmasked", "factored", "dense"])
def test_features_far_from_one_change_nothing(size, path, alike):
    torch.manual_seed(0)
    dtype = torch.float32 if 1e-38 < size < 1e38 else torch.float64
    q, k, v = (torch.rand(9, 2, 4, dtype=dtype) for _ in range(3))
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    mask = None if path == "unmasked" else DenseOperator((batch[:, None] == batch).to(dtype))
    path = "auto" if path == "unmasked" else path
    wanted = masked_linear_attention(q, k, v, mask, batch, path)
    if not alike:  # one graph is loud, the other two are quiet
        size = torch.tensor([size, 1 / size, 1 / size], dtype=dtype)[batch, None, None]
    far = [(q * size).requires_grad_(), (k * size).requires_grad_(), v.clone().requires_grad_()]
    got = masked_linear_attention(*far, mask, batch, path)
    torch.testing.assert_close(got, wanted)
    grads = torch.autograd.grad(got.square().sum(), far)
    assert all(bool(grad.isfinite().all()) for grad in grads)


def test_a_tiny_mask_is_as_good_as_any():
    torch.manual_seed(0)
    q, k, v = (torch.rand(5, 1, 4) for _ in range(3))
    matrix = torch.rand(5, 5)
    wanted = masked_linear_attention(q, k, v, DenseOperator(matrix))
    torch.testing.assert_close(masked_linear_attention(q, k, v, DenseOperator(matrix * 1e-30)), wanted)


@pytest.mark.parametrize("path", ["pairwise", "dense"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_softmax_gradient_to_an_entry_that_is_zero(path, normalizer):
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 1, 3, dtype=torch.float64) for _ in range(3))
    index = torch.tensor([[0, 0, 1, 2, 3, 3], [0, 1, 1, 3, 0, 2]])
    k[0], k[1] = 0, q[0] / q[0].square().sum()  # the absent pair (0, 1) outscores the present one, 1 to 0
    value = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.0, 1.5], dtype=torch.float64, requires_grad=True)

    def attend(value):
        mask = SparseFactorOperator((index, value), None, 4)
        return masked_softmax_attention(q, k, v, mask, path=path, normalizer=normalizer)

    if normalizer == "signed":
        assert torch.autograd.gradcheck(attend, (value,))
    else:  # the derivative from the right, where the mask is its own bounding mask
        step = torch.zeros(6, dtype=torch.float64)
        step[1] = 1e-7
        (grad,) = torch.autograd.grad(attend(value).sum(), value)
        slope = (attend(value + step) - attend(value)).sum() / 1e-7
        torch.testing.assert_close(grad[1], slope.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["pairwise", "dense"])
def test_softmax_attention_is_safe_for_large_scores_and_empty_rows(path):
    q, k, v = 1e3 * torch.randn(5, 1, 3), torch.randn(5, 1, 3), torch.randn(5, 1, 2)
    matrix = torch.ones(5, 5)
    matrix[2] = 0
    matrix[3, :4] = 0
    inputs = [x.requires_grad_() for x in (q, k, v, matrix)]
    out = masked_softmax_attention(q, k, v, sparse_operator(matrix), path=path)
    assert (out[2] == 0).all()
    torch.testing.assert_close(out[3], v[4])
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    wanted = torch.softmax(q[:, 0] @ k[:, 0].t() * 3**-0.5, -1) @ v[:, 0]
    torch.testing.assert_close(out[[0, 1, 4], 0], wanted[[0, 1, 4]], rtol=1e-4, atol=1e-5)


def test_a_half_precision_mask_is_listed_in_float32():
    matrix = torch.rand(6, 6).bfloat16() * (torch.rand(6, 6) < 0.5)
    operator = sparse_operator(matrix)
    pattern, entries = operator.pairs()
    assert entries.dtype == torch.float32
    assert operator.num_pairs == int((matrix != 0).sum())
    assert torch.equal(entries, matrix.float()[pattern.row.long(), pattern.col.long()])


def test_learned_pairs_listed_in_inference_mode_can_be_trained_later():
    value = torch.rand(3, requires_grad=True)
    operator = SparseFactorOperator((torch.tensor([[0, 1, 2], [1, 2, 0]]), value), None, 3)
    with torch.inference_mode():
        operator.pairs()
    operator.pairs()[1].sum().backward()
    assert torch.equal(value.grad, torch.ones(3))


@pytest.mark.parametrize("path", ["factored", "dense"])
@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2)])  # as many heads as nodes: shapes alone would not tell
def test_a_tensor_is_the_mask_that_an_operator_makes_of_it(shape, path):
    q, matrix = torch.rand(2, 2, 3), torch.randn(shape)
    for normalizer in NORMALIZERS:
        wanted = masked_linear_attention(q, q, q, DenseOperator(matrix), path=path, normalizer=normalizer)
        got = masked_linear_attention(q, q, q, matrix, path=path, normalizer=normalizer)
        torch.testing.assert_close(got, wanted)
    with pytest.raises(ValueError, match="the mask is a tensor; use path 'dense'"):
        masked_linear_attention(q, q, q, matrix, path="pairwise")
