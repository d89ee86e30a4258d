"""Masks of general graphs: heat kernels, power series, low rank, sparse, padding."""

from math import log

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.operators import HeatOperator, PowerSeriesOperator
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency
from tests.matrices import heat_generator

UNDIRECTED = {name: data for name, data in GRAPHS.items() if name != "one_way"}


class TestHeatOperator(OperatorCase):
    """The tolerance is small enough for the series to be exact."""

    graphs = UNDIRECTED

    @pytest.fixture(autouse=True, params=[0.8, [0.3, 0.8, 0.0]], ids=["shared", "heads"])
    def _time(self, request):
        self.time = torch.tensor(request.param, dtype=torch.float64)

    @pytest.fixture(autouse=True, params=["combinatorial", "normalized", "random_walk", "adjacency"])
    def _laplacian(self, request):
        self.laplacian = request.param

    def build(self, data, **parameters):
        time = parameters.get("time", self.time)
        weight = data.get("edge_weight")
        if "pair_weight" in parameters:  # the weight of both directions
            weight = parameters["pair_weight"].repeat_interleave(2)
        return HeatOperator(data.edge_index, data.num_nodes, time, weight, self.laplacian, tol=1e-12)

    def parameters(self, data):
        half = torch.linspace(0.5, 1.5, data.num_edges // 2, dtype=torch.float64)
        return {"time": self.time.clamp(min=0.1), "pair_weight": half}

    def reference(self, data):
        generator = heat_generator(dense_adjacency(data), self.laplacian)
        return torch.linalg.matrix_exp(-self.time[..., None, None] * generator)


def hub_graphs():
    """Degrees up to 300: a star; a clique, a path and a hub in one graph; a star beside a path and a single node."""
    star = torch.stack([torch.zeros(300, dtype=torch.long), torch.arange(1, 301)])
    clique = torch.combinations(torch.arange(60)).t()
    path = torch.stack([torch.arange(59, 120), torch.arange(60, 121)])
    hub = torch.stack([torch.full((300,), 120), torch.arange(121, 421)])
    mixed = torch.cat([clique, path, hub], dim=1)
    parts = torch.cat([star[:, :200], torch.tensor([[201, 202], [202, 203]])], dim=1)
    return [(star, 301), (mixed, 421), (parts, 205)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized", "random_walk", "adjacency"])
@pytest.mark.parametrize("number", range(3))
def test_heat_meets_its_tolerance(number, laplacian, dtype):
    edges, num_nodes = hub_graphs()[number]
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    adj = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adj[edge_index[0], edge_index[1]] = 1
    degree = adj.sum(1).clamp(min=1)
    root = degree.sqrt() if laplacian in ("normalized", "random_walk") else torch.ones_like(degree)
    generator = -adj if laplacian == "adjacency" else torch.diag(adj.sum(1)) - adj
    values, vectors = torch.linalg.eigh(generator / (root[:, None] * root))
    root = root if laplacian == "random_walk" else torch.ones_like(degree)
    x = torch.randn(num_nodes, 3, dtype=dtype)
    for time in (0.1, 1.0, 10.0, 50.0):
        if -time * values[0] > log(torch.finfo(dtype).max):
            with pytest.raises(ValueError, match="beyond the range"):
                HeatOperator(edge_index, num_nodes, torch.tensor(time, dtype=dtype), laplacian=laplacian)
            continue
        decay = torch.exp(-time * values)
        exact = (vectors * decay) @ (vectors.t() @ (x.double() / root[:, None])) * root[:, None]
        if laplacian == "random_walk":  # the one that is not symmetric
            norm = torch.linalg.matrix_norm((root[:, None] * vectors * decay) @ (vectors.t() / root), 2)
        else:
            norm = decay.max()
        for tol in (1e-4, 1e-6) if dtype == torch.float32 else (1e-3, 1e-9):
            op = HeatOperator(edge_index, num_nodes, torch.tensor(time, dtype=dtype), laplacian=laplacian, tol=tol)
            error = (((op @ x).double() - exact) / norm).norm(dim=0)  # squares of e^600 are out of range
            assert (error <= tol * x.double().norm(dim=0)).all(), (time, tol)


def test_heat_of_a_graph_does_not_depend_on_its_batch_mates():
    """The interval, so the degree, is that of each component."""
    star = torch.stack([torch.zeros(200, dtype=torch.long), torch.arange(1, 201)])
    pair = torch.tensor([[0, 1], [1, 0]])
    small = Data(edge_index=pair, num_nodes=2)
    large = Data(edge_index=torch.cat([star, star.flip(0)], dim=1), num_nodes=201)
    batch = Batch.from_data_list([large, small])
    for laplacian in ("combinatorial", "normalized", "random_walk", "adjacency"):
        alone = HeatOperator(pair, 2, torch.tensor(0.5), laplacian=laplacian, tol=1e-2)
        together = HeatOperator(batch.edge_index, 203, torch.tensor(0.5), laplacian=laplacian, tol=1e-2)
        x = torch.randn(203, 4, dtype=torch.float64)
        torch.testing.assert_close((together @ x)[201:], alone @ x[201:], rtol=1e-12, atol=1e-12)


EDGES = torch.tensor([[0, 1], [1, 0]])


def test_the_range_of_the_input_counts_too():
    op = HeatOperator(EDGES, 2, 200.0, laplacian="adjacency")
    assert (op @ torch.ones(2, 1, dtype=torch.float64)).isfinite().all()
    with pytest.raises(ValueError, match=r"exp\(200\) is beyond the range of torch.float32"):
        op @ torch.ones(2, 1)


def test_power_series_with_duplicates_bounds_their_sum():
    """Two equal edges of opposite weights are no edge."""
    edge_index, weight = torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, -1.0])
    op = PowerSeriesOperator(edge_index, 2, torch.tensor([0.0, -1.0]), weight)
    torch.testing.assert_close(op.bound.to_dense(), torch.zeros(2, 2))
