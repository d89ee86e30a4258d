"""Attention on large graphs holds a slice of its products at a time, and never all N R (D + 1) numbers."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_geometric.utils import grid

from pyg_topomask import operators
from pyg_topomask.limits import limits
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.typing import PerformanceWarning

SIDE, WIDTH = 40, 32
N = SIDE**2
EDGES, PARENT = grid(SIDE, SIDE)[0], torch.arange(N) // 2 - 1  # two binary trees
BUILD = {
    "causal": lambda: operators.CausalOperator(torch.zeros(N, dtype=torch.long)),
    "forest": lambda: operators.ForestExpOperator(PARENT, torch.rand(N), -0.5, 0.0),
    "tree distance": lambda: operators.TreeDistanceOperator(PARENT, torch.rand(9), "histogram"),
    "Toeplitz": lambda: operators.ToeplitzOperator(torch.rand(2 * SIDE - 1, 2 * SIDE - 1), (SIDE, SIDE)),
    "grid heat": lambda: operators.GridHeatOperator((SIDE, SIDE), 1.0),
    "heat": lambda: operators.HeatOperator(EDGES, N, 1.0),
    "power series": lambda: operators.PowerSeriesOperator(EDGES, N, torch.rand(3)),
    "low rank": lambda: operators.LowRankOperator(torch.rand(N, 8), torch.rand(N, 8)),
}


class Memory(TorchDispatchMode):
    """Records the bytes of the largest tensor that torch makes, and the most that its tensors hold at a time."""

    def __init__(self):
        super().__init__()
        self.storages, self.largest, self.most = weakref.WeakKeyDictionary(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                self.storages[x.untyped_storage()] = x.untyped_storage().nbytes()
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        self.most = max(self.most, sum(self.storages.values()))
        return out


@pytest.mark.parametrize("name", BUILD)
def test_attention_holds_a_slice_at_a_time(name):
    operator = BUILD[name]()
    q, k, v = (torch.rand(N, 1, WIDTH, requires_grad=True) for _ in range(3))
    with Memory() as memory, limits.override(slice_numbers=1):  # of a graph so large that few columns fit
        masked_linear_attention(q, k, v, operator, path="factored").sum().backward()
    every_column = 4 * N * WIDTH * (WIDTH + 1)
    assert 4 * N * WIDTH <= memory.largest <= every_column / 2


@pytest.mark.slow
@pytest.mark.parametrize("parent", [PARENT, torch.arange(N) - 1], ids=["trees", "path"])
def test_distances_by_centroids_hold_few_slices(parent):
    operator = operators.TreeDistanceOperator(parent, torch.rand(N), "centroid")
    operator @ torch.rand(N, 1)  # decomposes the forest
    q, k, v = (torch.rand(N, 1, WIDTH, requires_grad=True) for _ in range(3))
    with Memory() as memory, limits.override(slice_numbers=2**14):
        masked_linear_attention(q, k, v, operator, path="factored").sum().backward()
    assert memory.most <= 21 * 4 * N * (WIDTH + 1)  # 20 on these trees, 16 on a path, by counting


def test_a_hub_does_not_fill_the_memory():
    """A star of 600 nodes has 360,000 pairs, which are listed a part at a time."""
    leaves, zero = torch.arange(1, 600), torch.zeros(599, dtype=torch.long)
    factor = torch.stack([torch.cat([leaves, zero]), torch.cat([zero, leaves])]), torch.rand(1198)
    operator = operators.SparseFactorOperator(factor, factor, 600)
    q, k, v = (torch.rand(600, 1, 4, requires_grad=True) for _ in range(3))
    parts = pytest.warns(PerformanceWarning, match="in .* parts")
    with parts, Memory() as memory, limits.override(pairs_at_once=20_000, per_stored=0):
        masked_softmax_attention(q, k, v, operator, path="pairwise").sum().backward()
    assert memory.most < 4 * 600**2
