from itertools import product

import pytest
import torch

from pyg_topomask.ops.products.fft import toeplitz_matrix, toeplitz_multiply_adds, toeplitz_product

SHAPES = [(1,), (7,), (4, 5), (3, 1, 4), (2, 3, 2, 2)]


def matrix(weight, shape):
    """Entry by entry from the definition."""
    places = list(product(*map(range, shape)))
    rows = [[weight[(..., *(p - q + n - 1 for p, q, n in zip(a, b, shape)))] for b in places] for a in places]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


@pytest.mark.parametrize("shape", SHAPES)
def test_product_and_matrix(shape):
    weight = torch.randn(2, *(2 * n - 1 for n in shape), dtype=torch.float64)
    x = torch.randn(2, 40, *shape, dtype=torch.float64)  # more channels than a slice
    wanted = matrix(weight, shape)
    torch.testing.assert_close(toeplitz_matrix(weight, shape), wanted, rtol=0, atol=0)
    got = toeplitz_product(weight, x).flatten(2)
    torch.testing.assert_close(got, torch.einsum("hpq,hcq->hcp", wanted, x.flatten(2)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_gradients(shape):
    weight = torch.randn(2, *(2 * n - 1 for n in shape), dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 2, *shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(toeplitz_product, (weight, x))
    assert torch.autograd.gradgradcheck(toeplitz_product, (weight, x))
    assert torch.autograd.gradcheck(lambda w: toeplitz_matrix(w, shape), (weight,))


def test_no_channels():
    weight, x = torch.ones(1, 5, requires_grad=True), torch.ones(1, 0, 3)
    out = toeplitz_product(weight, x)
    assert out.shape == x.shape
    assert torch.equal(torch.autograd.grad(out.sum(), weight)[0], torch.zeros(1, 5))


def test_cost_grows_like_n_log_n():
    small, large = (toeplitz_multiply_adds((size, size)) for size in (64, 128))
    assert 4 * small < large < 5 * small
