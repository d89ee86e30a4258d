from itertools import product

import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops.products.fft import toeplitz_matrix, toeplitz_product

SHAPES = [(1,), (7,), (4, 5), (3, 1, 4), (2, 3, 2, 2)]


def matrix(weight, shape):
    """Entry by entry from the definition."""
    places = list(product(*map(range, shape)))
    rows = [[weight[(..., *(p - q + n - 1 for p, q, n in zip(a, b, shape)))] for b in places] for a in places]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


@pytest.mark.parametrize("slice_numel", [1, 30, 2**17])  # one channel, some, or all at a time
@pytest.mark.parametrize("shape", SHAPES)
def test_product_and_matrix(shape, slice_numel):
    weight = torch.randn(2, *(2 * n - 1 for n in shape), dtype=torch.float64)
    x = torch.randn(2, 40, *shape, dtype=torch.float64)
    wanted = matrix(weight, shape)
    torch.testing.assert_close(toeplitz_matrix(weight, shape), wanted, rtol=0, atol=0)
    with limits.override(slice_numbers=128 * slice_numel):
        got = toeplitz_product(weight, x).flatten(2)
    torch.testing.assert_close(got, torch.einsum("hpq,hcq->hcp", wanted, x.flatten(2)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3)])
def test_gradients(shape):
    weight = torch.randn(2, *(2 * n - 1 for n in shape), dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 2, *shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(toeplitz_product, (weight, x))
    assert torch.autograd.gradgradcheck(toeplitz_product, (weight, x))
    assert torch.autograd.gradcheck(lambda w: toeplitz_matrix(w, shape), (weight,))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
def test_long_axis(dtype, error):
    """Some rows of the matrix and some sums of the gradient, compared with their definitions."""
    size = 20_021  # a prime
    weight = torch.rand(1, 2 * size - 1, dtype=dtype, requires_grad=True)
    x = torch.rand(size, 2, dtype=dtype).t()[None]  # channels side by side, as in attention
    got = toeplitz_product(weight, x)
    exact, signal = weight[0].detach().double(), x[0].double()
    for row in (0, size // 3, size - 1):
        wanted = signal @ exact[row : row + size].flip(0)
        torch.testing.assert_close(got[0, :, row].double(), wanted, rtol=error, atol=0)
    factor = torch.rand_like(x)
    (grad,) = torch.autograd.grad((got * factor).sum(), weight)
    for offset in (-(size // 2), 0, size // 3):
        rows = torch.arange(max(offset, 0), min(offset, 0) + size)
        wanted = (factor[0].double()[:, rows] * signal[:, rows - offset]).sum()
        torch.testing.assert_close(grad[0, offset + size - 1].double(), wanted, rtol=error, atol=0)
