"""Masks of equal graphs: grids and hypercubes."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.operators import GridHeatOperator, HypercubeHeatOperator, ToeplitzOperator, toeplitz
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import OperatorCase

TIME = torch.tensor([0.3, 2.0], dtype=torch.float64)


def lattice(*shape):
    """A ``Data`` of as many nodes as a grid; the masks know the rest."""
    return Data(num_nodes=int(torch.tensor(shape).prod()), x=torch.zeros(int(torch.tensor(shape).prod()), 1))


def places(shape):
    return torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape))


def grid_laplacian(shape):
    place = places(shape)
    adj = ((place[:, None] - place).abs().sum(-1) == 1).double()
    return torch.diag(adj.sum(1)) - adj


class EqualGraphsCase(OperatorCase):
    shape = (3, 4)
    graphs = {"one": lattice(3, 4)}  # noqa: RUF012
    batch = ("one", "one", "one")
    moved = "one"
    equivariant = False

    def copies(self, data):
        return data.num_nodes // int(torch.tensor(self.shape).prod())

    def kernel(self):
        """The mask of one graph."""
        raise NotImplementedError

    def reference(self, data):
        return torch.kron(torch.eye(self.copies(data), dtype=torch.float64), self.kernel())


class TestToeplitzOperator(EqualGraphsCase):
    weight = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def build(self, data, **parameters):
        return ToeplitzOperator(parameters.get("weight", self.weight), self.shape, self.copies(data))

    def parameters(self, data):
        return {"weight": self.weight}

    def kernel(self):
        place = places(self.shape)
        index = place[:, None] - place + torch.tensor(self.shape) - 1
        return self.weight[(..., *index.unbind(-1))]


class TestToeplitzOperatorByTransform(TestToeplitzOperator):
    @pytest.fixture(autouse=True)
    def _transforms(self, monkeypatch):
        monkeypatch.setattr(toeplitz, "_MATRIX_SPEED", 0)


class TestToeplitzOperatorPerHead(TestToeplitzOperatorByTransform):
    weight = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class TestToeplitzOperatorOfASequence(TestToeplitzOperator):
    shape = (6,)
    graphs = {"one": lattice(6)}  # noqa: RUF012
    weight = torch.rand(2, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class TestGridHeatOperator(EqualGraphsCase):
    time = TIME[0]

    def build(self, data, **parameters):
        return GridHeatOperator(self.shape, parameters.get("time", self.time), self.copies(data))

    def parameters(self, data):
        return {"time": self.time}

    def kernel(self):
        return torch.linalg.matrix_exp(-self.time[..., None, None] * grid_laplacian(self.shape))


class TestGridHeatOperatorPerHead(TestGridHeatOperator):
    time = TIME
    shape = (2, 2, 3)


class TestHypercubeHeatOperator(TestGridHeatOperator):
    shape = (2, 2, 2)
    graphs = {"one": lattice(2, 2, 2)}  # noqa: RUF012

    def build(self, data, **parameters):
        return HypercubeHeatOperator(3, parameters.get("time", self.time), self.copies(data))


class TestHypercubeHeatOperatorPerHead(TestHypercubeHeatOperator):
    time = TIME


@pytest.mark.parametrize("shape", [(1,), (1, 1), (700,)])
def test_grids_of_one_node_and_long_paths(shape):
    x = torch.randn(2 * shape[0], 2, dtype=torch.float64)
    weight = torch.randn(*(2 * n - 1 for n in shape), dtype=torch.float64)
    place = places(shape)
    index = place[:, None] - place + torch.tensor(shape) - 1
    wanted = torch.block_diag(*[weight[(..., *index.unbind(-1))]] * 2) @ x
    torch.testing.assert_close(ToeplitzOperator(weight, shape, 2) @ x, wanted, rtol=1e-11, atol=1e-11)
    heat = torch.block_diag(*[torch.linalg.matrix_exp(-3.0 * grid_laplacian(shape))] * 2) @ x
    torch.testing.assert_close(GridHeatOperator(shape, 3.0, 2) @ x, heat, rtol=1e-12, atol=1e-12)


def test_small_grids_are_multiplied_as_matrices_and_large_ones_are_transformed():
    small, large = (ToeplitzOperator(torch.ones(2 * n - 1, 2 * n - 1), (n, n), 3) for n in (8, 64))
    assert small.num_multiply_adds == 3 * 64**2
    assert large.num_multiply_adds < 3 * 64**4 / 20
    assert small.error == 0.0
    assert large.error.shape == (3 * 64**2,)


def test_error_holds_for_the_transform():
    weight, x = torch.randn(2, 127, 127), torch.randn(64 * 64, 2, 3)
    op, exact = ToeplitzOperator(weight, (64, 64)), ToeplitzOperator(weight.double(), (64, 64))
    gap = ((op @ x).double() - exact @ x.double()).abs()
    assert (gap <= op.error[..., None] * x.abs().sum(0)).all()


def test_a_batch_of_other_graphs_is_refused():
    op = GridHeatOperator((2, 3), 1.0, 2)
    with pytest.raises(ValueError, match="graphs of 6 nodes, but a graph of 'batch' has 4"):
        op.dense_blocks.make(block_layout(torch.tensor([0] * 4 + [1] * 8)))
    (block,) = op.dense_blocks.make(block_layout(torch.zeros(12, dtype=torch.long)))  # both grids taken for one graph
    torch.testing.assert_close(block[0], op.to_dense().mT)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ToeplitzOperator(torch.ones(3, 4), (2, 2)), ValueError, r"must be \[3, 3\].*grid \[2, 2\].*\[3, 4\]"),
        (lambda: ToeplitzOperator(torch.ones(1, 1, 3, 3), (2, 2)), ValueError, r"got \[1, 1, 3, 3\]"),
        (lambda: ToeplitzOperator(torch.ones(3).long(), (2,)), TypeError, "floating point"),
        (lambda: ToeplitzOperator(torch.ones(1), ()), ValueError, "at least one axis"),
        (lambda: ToeplitzOperator(torch.ones(3), (2,), -1), ValueError, "'num_graphs' must be at least 0"),
        (lambda: GridHeatOperator((2, 0), 1.0), ValueError, "'grid_shape' must be at least 1"),
        (lambda: GridHeatOperator((2.5,), 1.0), TypeError, "'grid_shape' must be an integer"),
        (lambda: GridHeatOperator((2,), -1.0), ValueError, r"'time' .*at least 0 \(got \[-1.0\]\)"),
        (lambda: GridHeatOperator((2,), torch.tensor(torch.nan)), ValueError, "'time' .*nan"),
        (lambda: GridHeatOperator((2,), "long"), TypeError, "'time' must be a number .*'long'"),
        (lambda: GridHeatOperator((2,), torch.tensor(1)), TypeError, "torch.int64"),
        (lambda: HypercubeHeatOperator(-1, 1.0), ValueError, "'dim' must be at least 0"),
        (lambda: HypercubeHeatOperator(2, torch.ones(2, 2)), ValueError, r"\[H\] \(got \[2, 2\]\)"),
    ],
)
def test_bad_arguments_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_no_graphs():
    op = ToeplitzOperator(torch.ones(3), (2,), 0)
    assert (op @ torch.ones(0, 3)).shape == (0, 3)
    assert (GridHeatOperator((2,), 1.0, 0) @ torch.ones(0, 3)).shape == (0, 3)
