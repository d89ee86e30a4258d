"""The least that a mask operator defines, and how errors and precisions combine."""

import pytest
import torch

from pyg_topomask import operators, testing


class Plain(operators.MaskOperator):
    """The least that a subclass defines: without `bound`."""

    def __init__(self, matrix, error=0.0):
        self.matrix, self.num_nodes, self.dtype = matrix, matrix.size(-1), matrix.dtype
        self._error = error

    @property
    def T(self):
        return type(self)(self.matrix.t(), self._error)

    @property
    def error(self):
        return self._error

    def _matmul(self, x):
        return self.matrix.to(x.dtype) @ x


class Bounded(Plain):
    @property
    def bound(self):
        return self if bool((self.matrix >= 0).all()) else Bounded(self.matrix.abs(), self._error)


class TestAnOperatorOfOneLinePerProperty(testing.OperatorCase):
    """A mask of the order of the nodes, which relabelling does not carry along."""

    equivariant = False
    batch = ("path",)

    def build(self, data):
        return Bounded(self.reference(data))

    def reference(self, data):
        return torch.full((data.num_nodes, data.num_nodes), -0.5, dtype=torch.float64).tril()


def test_what_a_subclass_must_define():
    class WithoutProduct(operators.MaskOperator):
        @property
        def T(self):
            return self

    with pytest.raises(TypeError, match=r"abstract.*_matmul"):
        WithoutProduct()
    with pytest.raises(TypeError, match=r"abstract.*T"):
        operators.MaskOperator()
    op = Plain(torch.eye(3))
    assert (op.num_multiply_adds, op.eps, op.error) == (9, torch.finfo(torch.float32).eps, 0)
    with pytest.raises(NotImplementedError, match=r"Plain has no bounding mask.*'return self' if no entry"):
        op.bound  # noqa: B018


def test_precision_is_that_of_the_coarsest_number():
    single, double = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))
    wide, narrow = operators.DenseOperator(torch.eye(2).double()), operators.DenseOperator(torch.eye(2))
    assert wide.eps == operators.DiagonalScaledOperator(wide).eps == double
    for op in (
        wide + narrow,
        torch.tensor(2.0) * wide,
        operators.DiagonalScaledOperator(wide, torch.ones(2), torch.ones(2)),
    ):
        assert op.eps == single


def test_errors_combine_as_entries_do():
    a, b = torch.rand(3, 3, dtype=torch.float64) + 0.5, torch.randn(2, 2, dtype=torch.float64)
    rough, exact = Bounded(a, 1e-3), Bounded(b, torch.tensor([1e-3, 2e-3]))
    scale = torch.tensor([1.0, -3, 2], dtype=torch.float64)
    assert operators.DenseOperator(a).error == (operators.DenseOperator(a) + operators.DenseOperator(a)).error == 0
    graph = torch.tensor([0, 1, 1])
    two = operators.DiagonalScaledOperator(rough, None, scale, graph)  # one graph's scale leaves the other's
    stack = operators.HeadStackOperator([rough, operators.DenseOperator(a)])
    for op, wanted in (
        (-2 * rough, [[2e-3]] * 3),
        (rough + rough, [[2e-3]] * 3),
        (operators.DiagonalScaledOperator(rough, scale, scale), [[3e-3], [9e-3], [6e-3]]),
        *((op, [[1e-3], [3e-3], [3e-3]]) for op in (two, two.T.T, two.bound)),
        (stack, [[1e-3, 0.0]] * 3),
        (operators.BlockDiagonalOperator([rough, exact]), [[1e-3]] * 4 + [[2e-3]]),
    ):
        torch.testing.assert_close(torch.as_tensor(op.error), torch.tensor(wanted), check_dtype=False)
    # Entries off by their errors leave the product within its error.
    product = operators.KroneckerOperator(rough, exact)
    off = torch.kron(a + 1e-3, b + torch.tensor([[1e-3], [2e-3]], dtype=torch.float64) * b.sign())
    assert ((off - torch.kron(a, b)).abs() <= product.error).all()
    assert operators.KroneckerOperator(rough, stack).error.shape == (9, 2)


def test_an_operator_shows_its_size():
    op = operators.DenseOperator(torch.ones(2, 3, 3))
    assert repr(op) == "DenseOperator(num_nodes=3, heads=2)"
