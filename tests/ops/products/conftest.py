import pytest
import torch

from pyg_topomask.ops.native import loader
from tests.distances import forest_distances


def parents(kind, num_nodes):
    """Parent of each node of a forest, −1 for roots, with nodes in random order."""
    generator = torch.Generator().manual_seed(0)
    node, draw = torch.arange(num_nodes), torch.rand(num_nodes, generator=generator)
    parent = {
        "path": node - 1,
        "star": torch.zeros(num_nodes, dtype=torch.long),
        "tree": (draw * node).long(),
        "forest": torch.where(draw < 0.2, -1, (draw * node).long()),
        "deep": (node - 1 - (3 * draw).long()).clamp(min=0),
    }[kind]
    parent[0] = -1
    label = torch.randperm(num_nodes, generator=generator)
    return torch.empty_like(parent).index_copy(0, label, torch.where(parent < 0, -1, label[parent]))


@pytest.fixture(params=["path", "star", "tree", "forest", "deep"])
def forest(request):
    """Parents of 40 nodes, their lengths and all distances."""
    parent = parents(request.param, 40)
    length = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return parent, length, forest_distances(parent, length), forest_distances(parent)


@pytest.fixture(params=["compiled", "plain"])
def _code(request, monkeypatch):
    """Products over forests in compiled code, and in plain torch."""
    if request.param == "plain":
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    elif loader.missing("forest"):
        pytest.skip("needs a C++ compiler")
