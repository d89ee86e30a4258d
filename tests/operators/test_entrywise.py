"""Entry-wise products of masks against the products of their matrices."""

import pytest
import torch

from pyg_topomask.operators import (
    DenseOperator,
    DiagonalScaledOperator,
    LowRankOperator,
    OnesOperator,
    SparseFactorOperator,
    SparseOperator,
    ToeplitzOperator,
)
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference

BATCH = torch.tensor([0, 0, 0, 0, 1, 1])


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def entries(heads=None):
    index = torch.randint(6, (2, 14))
    return index, draw(14) if heads is None else draw(14, heads)


def factored(heads=None):
    return SparseFactorOperator(entries(heads), entries(), 6)


PAIRS = {
    "sparse factors": lambda: (factored(), factored()),
    "sparse factors, heads": lambda: (factored(2), factored()),
    "sparse with factors": lambda: (SparseOperator(*entries(), 6), factored(2)),
    "transposed sparse": lambda: (SparseOperator(*entries(), 6).T, SparseOperator(*entries(), 6)),
    "Toeplitz": lambda: (ToeplitzOperator(draw(2, 3, 5), (2, 3)), ToeplitzOperator(draw(3, 5), (2, 3))),
    "low rank": lambda: (
        LowRankOperator(draw(2, 6, 2), draw(2, 6, 2), BATCH),
        LowRankOperator(draw(2, 6, 3), draw(2, 6, 3)),
    ),
    "dense": lambda: (DenseOperator(draw(2, 6, 6)), DenseOperator(draw(6, 6))),
    "scaled": lambda: (-2.5 * DenseOperator(draw(6, 6)), draw(()) * DenseOperator(draw(6, 6))),
    "diagonals": lambda: (
        DiagonalScaledOperator(factored(), draw(6), draw(6, 2)),
        DiagonalScaledOperator(factored(), draw(6), draw(6)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_product_transpose_and_bound(name):
    left, right = PAIRS[name]()
    op, wanted = left * right, left.to_dense() * right.to_dense()
    x = draw(6, 3) if op.heads is None else draw(6, op.heads, 3)
    apply = "ij,jc->ic" if op.heads is None else "hij,jhc->ihc"
    torch.testing.assert_close(op @ x, torch.einsum(apply, wanted, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op.T @ x, torch.einsum(apply, wanted.mT, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op.to_dense(), wanted, rtol=1e-12, atol=1e-12)
    assert (op.bound.to_dense() >= wanted.abs() - 1e-12).all()


def test_gradients():
    (index, value), (other_index, other) = entries(), entries()

    def run(value, other):
        return (SparseOperator(index, value, 6) * SparseFactorOperator((other_index, other), None, 6)).to_dense()

    assert torch.autograd.gradcheck(run, (value.requires_grad_(), other.requires_grad_()))


@pytest.mark.parametrize(
    ("left", "right", "error", "message"),
    [
        (lambda: factored(), lambda: OnesOperator(BATCH), TypeError, "SparseFactorOperator and OnesOperator"),
        (lambda: DenseOperator(draw(2, 2)), lambda: DenseOperator(draw(3, 3)), ValueError, r"nodes \(got \[2, 3\]\)"),
        (lambda: factored(2), lambda: factored(3), ValueError, "heads"),
        (
            lambda: ToeplitzOperator(draw(3, 5), (2, 3)),
            lambda: ToeplitzOperator(draw(11), (6,)),
            ValueError,
            "same grids",
        ),
        (
            lambda: LowRankOperator(draw(6, 1), draw(6, 1), BATCH),
            lambda: LowRankOperator(draw(6, 1), draw(6, 1), 0 * BATCH),
            ValueError,
            "same 'batch'",
        ),
    ],
)
def test_what_has_no_fast_product_is_refused(left, right, error, message):
    with pytest.raises(error, match=message):
        left() * right()


def test_columns_of_a_product_are_no_nodes_even_if_they_are_as_many():
    left = torch.tensor([[0, 0, 1, 2, 3], [0, 1, 0, 2, 2]]), draw(5).abs()
    right = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 2]]), draw(4).abs()
    op = SparseFactorOperator(left, left, 4) * SparseFactorOperator(right, right, 4)
    batch = torch.tensor([0, 0, 1, 1])  # three pairs of columns in the first graph, and one in the second
    assert [mask.dense_blocks for mask in (op, op.T, op.bound)] == [None] * 3
    q, k, v = (torch.rand(4, 2, 3, dtype=torch.float64) for _ in range(3))
    wanted = masked_linear_attention_reference(q, k, v, op.to_dense())
    torch.testing.assert_close(masked_linear_attention(q, k, v, op, batch), wanted)
    with pytest.raises(ValueError, match="SparseFactorOperator has none"):
        masked_linear_attention(q, k, v, op, batch, "blocks")
