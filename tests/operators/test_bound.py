"""What attention asks of every operator: its bounding mask, its precision and its cost."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import GRFMask
from pyg_topomask.operators import (
    BlockDiagonalOperator,
    ConstantOperator,
    DenseOperator,
    DiagonalScaledOperator,
    GRFOperator,
    HeadStackOperator,
    KroneckerOperator,
    MaskOperator,
    OnesOperator,
    SparseFactorOperator,
    entrywise_product,
)
from pyg_topomask.ops.walks.product import walk_product
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks

PARTS = ("index", "length", "load")


class Plain(MaskOperator):
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


class TestAnOperatorOfOneLinePerProperty(OperatorCase):
    def build(self, data):
        return Bounded(dense_adjacency(data) - 0.5 * torch.eye(data.num_nodes, dtype=torch.float64))

    def reference(self, data):
        return dense_adjacency(data) - 0.5 * torch.eye(data.num_nodes, dtype=torch.float64)


class TestOrderedOperator(OperatorCase):
    """A mask of the order of the nodes, which relabelling does not carry along."""

    equivariant = False
    batch = ("path",)

    def build(self, data):
        return Bounded(torch.ones(data.num_nodes, data.num_nodes, dtype=torch.float64).tril())

    def reference(self, data):
        return torch.ones(data.num_nodes, data.num_nodes, dtype=torch.float64).tril()


def test_a_subclass_without_a_product_or_a_transpose_cannot_be_made():
    class WithoutProduct(MaskOperator):
        @property
        def T(self):
            return self

    with pytest.raises(TypeError, match=r"abstract.*_matmul"):
        WithoutProduct()
    with pytest.raises(TypeError, match=r"abstract.*T"):
        MaskOperator()


def test_a_subclass_without_a_bound_is_told_how_to_define_it():
    op = Plain(torch.eye(3))
    assert op.num_multiply_adds == 9
    assert (op.eps, op.error) == (torch.finfo(torch.float32).eps, 0)
    with pytest.raises(NotImplementedError, match=r"Plain has no bounding mask.*'return self' if no entry"):
        op.bound  # noqa: B018


def walks_of(load, name="walk"):
    """A GRF operator of the walks of a star, with loads changed by a function."""
    data = AddRandomWalks(num_walks=3, max_length=3, halt_prob=0.2, seed=0)(GRAPHS["star"].clone())
    first, second = ([data[f"{table}_{part}"] for part in PARTS] for table in ("walk", "walk_key"))
    first[2], second[2] = load(first[2]), load(second[2])
    walks = walk_product(*first, *second, data.num_nodes, 3, torch.float64)
    return lambda f: GRFOperator(walks, torch.tensor(f, dtype=torch.float64))


def sparse(value):
    return SparseFactorOperator((torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor(value)), None, 3)


ONES = OnesOperator(torch.tensor([0, 0, 1]))
POSITIVE, NEGATIVE = DenseOperator(torch.rand(3, 3)), DenseOperator(-torch.rand(3, 3))
GRF = walks_of(lambda load: load)


@pytest.mark.parametrize(
    ("positive", "negative"),
    [
        (POSITIVE, NEGATIVE),
        (sparse([1.0, 2.0, 0.0]), sparse([1.0, -2.0, 0.0])),
        (GRF([1.0, 0, 0.2, 0]), GRF([1.0, 0, -0.2, 0])),
        (GRF([1.0, 0, 0.2, 0]).T, GRF([1.0, 0, -0.2, 0]).T),
        (GRF([1.0, 0, 0.2, 0]), walks_of(torch.neg)([1.0, 0, 0.2, 0])),
        (2 * ONES, -2 * ONES),
        (torch.tensor(2.0) * ONES, torch.tensor(-2.0) * ONES),
        (2 * POSITIVE, 2 * NEGATIVE),
        (ONES + POSITIVE, ONES + NEGATIVE),
        (HeadStackOperator([ONES, POSITIVE]), HeadStackOperator([ONES, NEGATIVE])),
        (BlockDiagonalOperator([ONES, POSITIVE]), BlockDiagonalOperator([NEGATIVE, ONES])),
        (KroneckerOperator(ONES, POSITIVE), KroneckerOperator(NEGATIVE, ONES)),
        (ConstantOperator(POSITIVE), ConstantOperator(NEGATIVE)),
        (
            DiagonalScaledOperator(POSITIVE, torch.rand(3), torch.rand(3, 2)),
            DiagonalScaledOperator(POSITIVE, torch.rand(3), -torch.rand(3, 2)),
        ),
    ],
)
def test_a_mask_without_negative_parameters_is_its_own_bound(positive, negative):
    assert positive.bound is positive
    bound = negative.bound
    assert bound is not negative
    assert bound.bound is bound
    assert type(bound) is type(negative)
    assert (bound.to_dense() >= negative.to_dense().abs() - 1e-6).all()
    assert (bound.to_dense() > 0).any()


def test_equal_entries_are_added_up_before_the_absolute_value():
    index = torch.tensor([[0, 1, 0], [1, 1, 1]])
    op = SparseFactorOperator((index, torch.tensor([3.0, 1.0, -2.0])), None, 2)
    assert op.bound is op
    assert op.num_multiply_adds == op.support.count() == 2
    torch.testing.assert_close(op.to_dense(), torch.tensor([[0.0, 1], [0, 1]]))
    op = SparseFactorOperator((index, torch.tensor([[-3.0, 3], [1, 1], [2, -2]])), None, 2)
    torch.testing.assert_close(op.bound.to_dense(), torch.tensor([[[0.0, 1], [0, 1]]] * 2))


def test_the_bound_of_signed_walks_takes_loads_absolute_before_they_add_up():
    signed = walks_of(lambda load: load * (-1.0) ** torch.arange(load.numel()))([1.0, -0.5, 0.3, 0.2])
    plain = GRF([1.0, 0.5, 0.3, 0.2])
    torch.testing.assert_close(signed.bound.to_dense(), plain.to_dense())
    torch.testing.assert_close(signed.T.bound.to_dense(), plain.to_dense().t())


def test_the_constant_bound_is_computed_once():
    op = ConstantOperator(NEGATIVE)
    assert op.bound is op.bound
    assert ConstantOperator(SparseFactorOperator(None, None, 3)).bound.support.pairs(None)[1].tolist() == [1, 1, 1]


def test_a_constant_mask_can_be_pickled_and_copied_after_its_use():
    index = torch.tensor([[0, 1, 1], [1, 0, 1]])
    op = ConstantOperator(SparseFactorOperator((index, torch.tensor([1.0, 2.0, 3.0])), None, 2))
    pattern, entries = op.support.pairs(None)
    for copy in (pickle.loads(pickle.dumps(op)), deepcopy(op)):
        found = copy.support.pairs(None)
        assert found[0] is not pattern
        assert torch.equal(found[1], entries)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: DenseOperator(x),
        lambda x: SparseFactorOperator((torch.tensor([[0, 0, 1], [0, 1, 1]]), x[0]), None, 3),
        lambda x: x[0, 0] * ONES,
        lambda x: DiagonalScaledOperator(ONES, x[0], x[1]),
        lambda x: GRFOperator(GRF([1.0] * 4).walks, torch.cat([x[0], x[1, :1]])),
    ],
)
def test_the_bound_has_derivative_plus_one_where_a_parameter_is_zero(build):
    """The derivative from the right, where the mask is its own bound: nothing jumps where a parameter starts at 0."""
    zero = torch.tensor([[0.0, -1, 2], [1, 1, 1], [1, 1, 1]], dtype=torch.float64)
    grads = []
    for first in (0.0, 1e-9):
        x = zero.clone()
        x[0, 0] = first
        x.requires_grad_()
        grads.append(torch.autograd.grad(build(x).bound.to_dense().sum(), x)[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: DenseOperator(x).bound @ torch.ones(3, 2, dtype=torch.float64),
        lambda x: (x[0, 0] * (ONES + DenseOperator(x))).bound.to_dense(),
        lambda x: DiagonalScaledOperator(DenseOperator(x), x[0], x[1]).T.bound.to_dense(),
        lambda x: KroneckerOperator(HeadStackOperator([DenseOperator(x), ONES]), ONES).bound.to_dense(),
        lambda x: BlockDiagonalOperator([DenseOperator(x), ONES]).bound.to_dense(),
        lambda x: GRFOperator(GRF([1.0] * 4).walks, torch.cat([x[0], x[1, :1]])).bound.support.pairs(None)[1].values,
        lambda x: GRFOperator(GRF([1.0] * 4).walks, torch.cat([x[0], x[1, :1]])).T.bound.to_dense(),
        lambda x: SparseFactorOperator(
            (torch.tensor([[0, 0, 1], [0, 1, 1]]), x[0]), (torch.tensor([[2, 0, 1], [0, 1, 1]]), x[1]), 3
        ).bound.support.pairs(None)[1],
    ],
)
def test_the_bound_is_differentiable_in_every_parameter(build):
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(build, (x.requires_grad_(),))


def test_precision_is_that_of_the_coarsest_number():
    single, double = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))
    assert DenseOperator(torch.eye(2).double()).eps == double
    assert (DenseOperator(torch.eye(2).double()) + DenseOperator(torch.eye(2))).eps == single
    assert (torch.tensor(2.0) * DenseOperator(torch.eye(2).double())).eps == single
    assert DiagonalScaledOperator(DenseOperator(torch.eye(2).double()), torch.ones(2), torch.ones(2)).eps == single
    assert walks_of(lambda load: load)([1.0] * 4).eps == single  # float32 loads, a float64 modulation function
    assert walks_of(lambda load: load.double())([1.0] * 4).eps == double


def test_errors_combine_as_entries_do():
    a, b = torch.rand(3, 3, dtype=torch.float64) + 0.5, torch.randn(2, 2, dtype=torch.float64)
    rough, exact = Bounded(a, 1e-3), Bounded(b, torch.tensor([1e-3, 2e-3]))
    scale = torch.tensor([1.0, -3, 2], dtype=torch.float64)
    assert DenseOperator(a).error == (DenseOperator(a) + DenseOperator(a)).error == 0
    assert (-2 * rough).error == 2e-3
    torch.testing.assert_close((rough + rough).error, torch.full((3, 1), 2e-3), check_dtype=False)
    scaled = DiagonalScaledOperator(rough, scale, scale)
    torch.testing.assert_close(scaled.error, 3e-3 * scale.abs()[:, None], check_dtype=False)
    two = DiagonalScaledOperator(rough, None, scale, torch.tensor([0, 1, 1]))  # one graph's scale leaves the other's
    for op in (two, two.T.T, two.bound):
        torch.testing.assert_close(op.error, torch.tensor([[1e-3], [3e-3], [3e-3]]), check_dtype=False)
    stack = HeadStackOperator([rough, DenseOperator(a)])
    torch.testing.assert_close(stack.error, torch.tensor([[1e-3, 0.0]] * 3), check_dtype=False)
    blocks = BlockDiagonalOperator([rough, exact])
    wanted = torch.tensor([[1e-3]] * 4 + [[2e-3]])
    torch.testing.assert_close(blocks.error, wanted, check_dtype=False)
    # Entries off by their errors leave the product within its error.
    product = KroneckerOperator(rough, exact)
    off = torch.kron(a + 1e-3, b + torch.tensor([[1e-3], [2e-3]], dtype=torch.float64) * b.sign())
    assert ((off - torch.kron(a, b)).abs() <= product.error).all()
    assert KroneckerOperator(rough, stack).error.shape == (9, 2)


def test_a_graph_without_nodes_has_a_bound():
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=0)
    data = AddRandomWalks(max_length=3, seed=0)(data)
    first, second = ([data[f"{table}_{part}"] for part in PARTS] for table in ("walk", "walk_key"))
    op = GRFOperator(walk_product(*first, *second, 0, 3, torch.float64), torch.tensor([1.0, -1, 0, 0]).double())
    assert op.bound.to_dense().shape == (0, 0)


def test_factors_whose_columns_are_no_nodes_have_no_blocks():
    wide = entrywise_product(GRF([1.0, 1, 1, 1]), GRF([1.0, 1, 1, 1]))
    assert wide.dense_blocks is None
    with pytest.raises(TypeError, match="no fast entry-wise product of GRFOperator"):
        entrywise_product(*[_corrected()] * 2)


def _corrected():
    data = AddRandomWalks(4, 3, seed=0, diagonal="corrected")(GRAPHS["star"].clone())
    return GRFMask(max_length=3, diagonal="corrected")(data)
