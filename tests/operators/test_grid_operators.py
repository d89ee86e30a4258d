"""Masks of equal graphs: grids and hypercubes."""

import math

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.operators import GridHeatOperator, HypercubeHeatOperator, ToeplitzOperator, toeplitz
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.ops.products import kronecker
from pyg_topomask.testing import OperatorCase

TIME = torch.tensor([0.3, 20.0], dtype=torch.float64)


def lattice(*shape):
    """A ``Data`` of as many nodes as a grid; the masks know the rest."""
    return Data(num_nodes=int(torch.tensor(shape).prod()), x=torch.zeros(int(torch.tensor(shape).prod()), 1))


def places(shape):
    return torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape))


def grid_laplacian(shape):
    place = places(shape)
    adj = ((place[:, None] - place).abs().sum(-1) == 1).double()
    return torch.diag(adj.sum(1)) - adj


def weights(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def entries(weight, shape):
    place = places(shape)
    index = place[:, None] - place + torch.tensor(shape) - 1
    return weight[(..., *index.unbind(-1))]


def heat(time, shape):
    return torch.linalg.matrix_exp(-time[..., None, None] * grid_laplacian(shape))


def hypercube(time, shape, copies):
    return HypercubeHeatOperator(len(shape), time, copies)


def grid_heat(time, shape, copies):
    return GridHeatOperator(shape, time, copies)


# The operator of numbers, a shape and a number of graphs; the mask of one graph; the shape; the numbers.
CASES = {
    "toeplitz": (ToeplitzOperator, entries, (3, 4), weights(5, 7)),
    "transform": (ToeplitzOperator, entries, (3, 4), weights(5, 7)),
    "transform_heads": (ToeplitzOperator, entries, (3, 4), weights(2, 5, 7)),
    "sequence": (ToeplitzOperator, entries, (6,), weights(2, 11)),
    "grid_heat": (grid_heat, heat, (3, 4), TIME[0]),
    "grid_heat_heads": (grid_heat, heat, (2, 2, 3), TIME),
    "hypercube": (hypercube, heat, (2, 2, 2), TIME[0]),
    "hypercube_transform_heads": (hypercube, heat, (2, 2, 2), TIME),
}


class TestEqualGraphs(OperatorCase):
    batch = ("one", "one", "one")
    moved = "one"
    equivariant = False

    @pytest.fixture(autouse=True, params=CASES)
    def _case(self, request, monkeypatch):
        self.make, self.kernel, self.shape, self.numbers = CASES[request.param]
        self.graphs = {"one": lattice(*self.shape)}
        if "transform" in request.param:
            monkeypatch.setattr(toeplitz, "_MATRIX_SPEED", 0)
            monkeypatch.setattr(kronecker, "_MOST_JOINED", 4)

    def copies(self, data):
        return data.num_nodes // int(torch.tensor(self.shape).prod())

    def build(self, data, numbers=None):
        return self.make(self.numbers if numbers is None else numbers, self.shape, self.copies(data))

    def parameters(self, data):
        return {"numbers": self.numbers}

    def reference(self, data):
        return torch.kron(torch.eye(self.copies(data), dtype=torch.float64), self.kernel(self.numbers, self.shape))


@pytest.mark.parametrize("most_dense", [256, 1], ids=["matrices", "transforms"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 3, 4), (700,)])
def test_grids_of_one_node_and_long_paths(shape, most_dense, monkeypatch):
    monkeypatch.setattr(kronecker, "_MOST_DENSE", most_dense)
    monkeypatch.setattr(kronecker, "_MOST_JOINED", min(most_dense, 32))
    x = torch.randn(2 * math.prod(shape), 40, dtype=torch.float64)  # more columns than are transformed together
    weight = torch.randn(*(2 * n - 1 for n in shape), dtype=torch.float64)
    wanted = torch.block_diag(*[entries(weight, shape)] * 2) @ x
    torch.testing.assert_close(ToeplitzOperator(weight, shape, 2) @ x, wanted, rtol=1e-11, atol=1e-11)
    wanted = torch.block_diag(*[heat(torch.tensor(3.0).double(), shape)] * 2) @ x
    torch.testing.assert_close(GridHeatOperator(shape, 3.0, 2) @ x, wanted, rtol=1e-12, atol=1e-12)
    if shape != (700,):
        assert torch.equal(HypercubeHeatOperator(0, 3.0, len(x)) @ x, x)
        time, x = TIME.clone().requires_grad_(), x[:, None, :1].expand(-1, 2, -1).clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda time, x: GridHeatOperator(shape, time, 2) @ x, (time, x))


def test_small_grids_are_multiplied_as_matrices_and_large_ones_are_transformed():
    small, large = (ToeplitzOperator(torch.ones(2 * n - 1, 2 * n - 1), (n, n), 3) for n in (8, 64))
    assert small.num_multiply_adds == 3 * 64**2
    assert large.num_multiply_adds < 3 * 64**4 / 20
    assert GridHeatOperator((4, 5), 1.0, 3).num_multiply_adds == 3 * 20**2
    assert GridHeatOperator((1024, 1024), 1.0).num_multiply_adds < 1024**2 * 256
    assert HypercubeHeatOperator(12, 1.0).num_multiply_adds == 2**12 * (32 + 32 + 4)
    assert small.error == 0.0
    assert large.error.shape == (3 * 64**2,)


@pytest.mark.parametrize("time", [1e-9, 0.7, 20.0])
def test_hypercubes_have_the_closed_form_of_the_paper(time):
    """Section 4.1 of arXiv:2107.07999, in all digits also after short times."""
    time, place = torch.tensor(time, dtype=torch.float64), places((2,) * 4)
    distance = (place[:, None] - place).abs().sum(-1)
    wanted = ((1 + torch.exp(-2 * time)) / 2) ** 4 * torch.tanh(time) ** distance
    torch.testing.assert_close(HypercubeHeatOperator(4, time).to_dense(), wanted, rtol=1e-12, atol=0)


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
