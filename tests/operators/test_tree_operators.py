"""Masks of forests and of sequences."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.limits import limits
from pyg_topomask.operators import ForestExpOperator, GridHeatOperator, ToeplitzOperator, TreeDistanceOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.testing import OperatorCase
from tests.distances import forest_distances


def forest(parent, seed=0):
    """A forest as one-way edges from each node to its parent, with lengths, so that PyG batches and relabels it."""
    parent = torch.tensor(parent)
    child = (parent >= 0).nonzero().squeeze(1)
    length = torch.rand(child.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.2
    return Data(
        x=torch.zeros(parent.numel(), 1),
        edge_index=torch.stack([child, parent[child]]),
        edge_weight=length,
        num_nodes=parent.numel(),
    )


FORESTS = {
    "path": forest([1, 2, 3, -1]),
    "star": forest([-1, 0, 0, 0, 0]),
    "tree": forest([3, 0, 0, -1, 3, 4, 5, 4, 3]),
    "forest": forest([-1, 0, 0, -1, 3, -1, 5, 6]),
    "isolated": forest([-1, -1, -1]),
    "single": forest([-1]),
}


def parents(data):
    """Parent and length by node."""
    child, above = data.edge_index
    parent = torch.full((data.num_nodes,), -1)
    length = torch.full((data.num_nodes,), torch.nan, dtype=torch.float64)  # roots' are not read
    parent[child], length[child] = above, data.edge_weight
    return parent, length


class ForestCase(OperatorCase):
    graphs = FORESTS
    batch = ("path", "forest", "tree", "single", "path")
    moved = "tree"


class TestForestExpOperator(ForestCase):
    @pytest.fixture(autouse=True, params=[(-0.7, 0.3), (0.9, 0.0), ([-0.7, 0.4], -0.1), (-0.7, [0.5, -0.1, 0.0])])
    def _case(self, request):
        self.a, self.b = (torch.tensor(x, dtype=torch.float64) for x in request.param)

    def build(self, data, **parameters):
        parent, length = parents(data)
        own = {"length": length, "a": self.a, "b": self.b, **parameters}
        return ForestExpOperator(parent, own["length"], own["a"], own["b"])

    def parameters(self, data):
        return {"length": parents(data)[1].nan_to_num(1.0), "a": self.a, "b": self.b}

    def reference(self, data):
        dist = forest_distances(*parents(data))
        a, b = (x[..., None, None] for x in (self.a, self.b))
        return torch.where(dist.isfinite(), torch.exp(a * dist.nan_to_num(posinf=0) + b), 0)


VALUES = [1.3, -0.4, 0.2, 0.7], [[0.3, 0.1, 0, 0, 2.0, 1, 1, 1, 1], [1.0, 0, -1, 3, 0, 0, 1, 0, 0]]


class TestTreeDistanceOperator(ForestCase):
    @pytest.fixture(autouse=True, params=["histogram", "centroid", "auto"])
    def _method(self, request):
        self.method = request.param

    @pytest.fixture(autouse=True, params=VALUES, ids=["shared", "heads"])
    def _values(self, request):
        self.values = torch.tensor(request.param, dtype=torch.float64)

    def build(self, data, **parameters):
        return TreeDistanceOperator(parents(data)[0], parameters.get("values", self.values), self.method)

    def parameters(self, data):
        return {"values": self.values + 0.05}  # |.| has no derivative at 0

    def reference(self, data):
        hops = forest_distances(parents(data)[0])
        inside = hops < self.values.size(-1)
        return torch.where(inside, self.values[..., torch.where(inside, hops, 0).long()], 0)


def test_methods_agree_on_a_larger_forest_in_every_slice(monkeypatch):
    parent = (torch.rand(200) * torch.arange(200)).long()
    parent[0] = parent[150] = -1
    values, x = torch.randn(2, 12, dtype=torch.float64), torch.randn(200, 2, 5, dtype=torch.float64)
    by_centroid = TreeDistanceOperator(parent, values, "centroid") @ x
    torch.testing.assert_close(TreeDistanceOperator(parent, values, "histogram") @ x, by_centroid, rtol=0, atol=1e-11)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    with limits.override(slice_numbers=1):
        sliced = TreeDistanceOperator(parent, values, "histogram") @ x
    torch.testing.assert_close(sliced, by_centroid, rtol=0, atol=1e-11)


def test_the_method_of_least_work_is_taken():
    path = torch.arange(1000) - 1
    assert TreeDistanceOperator(path, torch.ones(1000)).method == "centroid"
    assert TreeDistanceOperator(path, torch.ones(2)).method == "histogram"
    pairs = torch.where(torch.arange(1000) % 2 == 0, -1, path)  # no two nodes are more than a hop apart
    assert TreeDistanceOperator(pairs, torch.ones(1000)).method == "histogram"


def test_error_holds_for_centroids():
    parent = (torch.arange(3000) - 1 - (3 * torch.rand(3000)).long()).clamp(min=0)
    parent[0] = -1
    values, x = torch.randn(400), torch.randn(3000, 4)
    op = TreeDistanceOperator(parent, values, "centroid")
    exact = TreeDistanceOperator(parent, values.double(), "centroid") @ x.double()
    assert (((op @ x).double() - exact).abs() <= op.error[:, None] * x.abs().sum(0)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_error_of_the_products_that_widen_it(dtype):
    """Otherwise rows with small entries vanish in attention."""
    values = torch.tensor([0.01, 0, 0, 0, 0, 0, 1], dtype=dtype)
    q, v = torch.ones(8, 1, 1), torch.arange(8.0)[:, None, None]
    masks = [TreeDistanceOperator(torch.arange(-1, 7), values, method) for method in ("centroid", "histogram")]
    torch.testing.assert_close(*(masked_linear_attention(q, q, v, mask) for mask in masks), rtol=1e-3, atol=1e-3)
    assert GridHeatOperator((8,), torch.tensor(1.0, dtype=dtype)).error < 1e-5
    assert ToeplitzOperator(torch.ones(1999, dtype=dtype), (1000,)).error.max() < 1e-4
