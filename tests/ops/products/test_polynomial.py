import pytest
import torch

from pyg_topomask.operators import HeatOperator, PowerSeriesOperator, ProductOperator, TreeDistanceOperator
from pyg_topomask.ops import deconvolve
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products.polynomial import Basis, polynomial_product
from pyg_topomask.ops.sparse import Pattern

GROUP = torch.tensor([0, 0, 0, 0, 1, 1, 1])


@pytest.fixture
def matrix():
    """A matrix that joins no two groups, not symmetric."""
    same = (GROUP[:, None] == GROUP) & (torch.rand(7, 7) < 0.6)
    return torch.where(same, torch.randn(7, 7, dtype=torch.float64), 0)


@pytest.mark.parametrize("chebyshev", [False, True], ids=["powers", "chebyshev"])
@pytest.mark.parametrize(("groups", "heads", "own"), [(1, 1, 1), (2, 2, 1), (2, 2, 2), (1, 2, 2)])
def test_product_and_gradients(matrix, chebyshev, groups, heads, own):
    row, col = matrix.nonzero().t()
    basis = Basis(Pattern(row, col, 7, 7), matrix[row, col], chebyshev)
    group = GROUP if groups == 2 else None
    coeffs = torch.randn(4, groups, own, dtype=torch.float64, requires_grad=True)
    x = torch.randn(7, heads, 2, dtype=torch.float64, requires_grad=True)
    terms = [torch.eye(7, dtype=torch.float64), matrix]
    for _ in range(2):
        terms.append(2 * matrix @ terms[-1] - terms[-2] if chebyshev else matrix @ terms[-1])
    by_row = coeffs[:, GROUP] if groups == 2 else coeffs
    wanted = sum(c[..., None] * torch.einsum("ij,jhc->ihc", term, x) for c, term in zip(by_row, terms))
    torch.testing.assert_close(polynomial_product(basis, coeffs, group, x), wanted, rtol=1e-12, atol=1e-12)

    def run(coeffs, x):
        return polynomial_product(basis, coeffs, group, x)

    assert torch.autograd.gradcheck(run, (coeffs, x))
    assert torch.autograd.gradgradcheck(run, (coeffs, x))


def test_no_terms_and_one_term(matrix):
    row, col = matrix.nonzero().t()
    basis = Basis(Pattern(row, col, 7, 7), matrix[row, col], False)
    x = torch.randn(7, 1, 2, dtype=torch.float64)
    torch.testing.assert_close(polynomial_product(basis, torch.full((1, 1, 1), 2.0), None, x), 2 * x)
    assert (polynomial_product(basis, torch.ones(0, 1, 1), None, x) == 0).all()


@pytest.mark.skipif(loader.missing("polynomial"), reason="needs a C++ compiler")
@pytest.mark.parametrize("laplacian", ["normalized", "random_walk"])
def test_attention_in_slices_equals_products_with_all_columns(laplacian):
    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 5, 6], [1, 0, 2, 1, 3, 2, 6, 5]])
    q, k, v = torch.rand(3, 7, 2, 3, dtype=torch.float64)
    heat = HeatOperator(edges, 7, torch.tensor([0.5, 2.0]), laplacian=laplacian)
    series = PowerSeriesOperator(edges, 7, torch.rand(2, 4, dtype=torch.float64))
    directed = PowerSeriesOperator(edges[:, :5], 7, series.coeffs)
    tree = TreeDistanceOperator(torch.tensor([-1, 0, 1, 1, 0, -1, 5]), series.coeffs, "histogram")
    assert ProductOperator(directed, directed.T).contract(q, k, v) is None
    for mask in (heat, heat.T, directed.T, ProductOperator(series, series.T), tree):
        state = (mask @ (k[..., None] * v[..., None, :]).flatten(2)).unflatten(2, (3, 3))
        torch.testing.assert_close(mask.contract(q, k, v), (q[..., None] * state).sum(2))
    long = HeatOperator(edges, 7, 500.0)  # needs wider numbers
    narrow = long.contract(q.float(), k.float(), v.float())
    torch.testing.assert_close(narrow, long.contract(q, k, v).float(), atol=0, rtol=1e-6)
    with pytest.raises(ValueError, match="beyond the range"):
        HeatOperator(edges, 7, 300.0, laplacian="adjacency").contract(q.float(), k.float(), v.float())


def test_the_second_function_of_an_asymmetric_pair_convolves_with_the_first_to_the_coefficients():
    first, coeffs = torch.randn(3, 5).double().requires_grad_(), torch.randn(3, 5).double().requires_grad_()
    second = deconvolve(coeffs, first)
    found = torch.stack([sum(first[:, p] * second[:, k - p] for p in range(k + 1)) for k in range(5)], 1)
    torch.testing.assert_close(found, coeffs)
    assert torch.equal(deconvolve(coeffs, torch.eye(5).double()[0]), coeffs)  # Φ₂ = I
    assert torch.autograd.gradcheck(deconvolve, (coeffs, first))
    for bad in (torch.ones(4), torch.zeros(5)):
        with pytest.raises(ValueError, match="'first' must have 5 numbers, not beginning with 0"):
            deconvolve(coeffs, bad)
