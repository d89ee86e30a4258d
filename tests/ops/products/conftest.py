import pytest
import torch

from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import forest as forest_module


def parents(kind, num_nodes, seed=0):
    """Parent of each node of a forest, −1 for roots, with nodes in random order."""
    generator = torch.Generator().manual_seed(seed)
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


def path_lengths(parent, length):
    """Length of the path between any two nodes, by climbing to the root; infinite across trees."""

    def ancestors(node):
        way = {node: 0.0}
        while int(parent[node]) >= 0:
            way[int(parent[node])] = way[node] + float(length[node])
            node = int(parent[node])
        return way

    ways = [ancestors(node) for node in range(parent.numel())]
    return torch.tensor(
        [[min([a[k] + b[k] for k in a.keys() & b.keys()], default=torch.inf) for b in ways] for a in ways],
        dtype=torch.float64,
    ).reshape(parent.numel(), parent.numel())


@pytest.fixture(params=["path", "star", "tree", "forest", "deep"])
def forest(request):
    """Parents of 40 nodes, their lengths and all distances."""
    parent = parents(request.param, 40)
    length = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return parent, length, path_lengths(parent, length), path_lengths(parent, torch.ones(40))


@pytest.fixture(params=["compiled", "one band", "bands"])
def _code(request, monkeypatch):
    """Products over forests in compiled code, and in plain torch with forests as they are or cut into bands."""
    if request.param != "compiled":
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")
        monkeypatch.setattr(forest_module, "_MOST_LEVELS", 64 if request.param == "one band" else 2)
    elif loader.missing("forest"):
        pytest.skip("needs a C++ compiler")
