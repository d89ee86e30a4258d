"""Walks on one graph, and on many copies of it."""

import torch
from torch_geometric.data import Data

from pyg_topomask.ops import sample_walks


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(data, seed=0, **settings):
    settings = {"num_walks": 8, "max_length": 3, "halt_prob": 0.3, **settings}
    weight = data.get("edge_weight")
    return sample_walks(data.edge_index, data.num_nodes, edge_weight=weight, generator=seeded(seed), **settings)


def draw_many(data, draws, seed=0, **settings):
    """Loads and counts [draws, K + 1, N, N] and own products [draws, N, Q] of walks on as many copies of a graph."""
    size, length = data.num_nodes, settings.get("max_length", 3)
    copies = Data(edge_index=data.edge_index.repeat(1, draws), num_nodes=size * draws)
    copies.edge_index = copies.edge_index + torch.arange(draws).repeat_interleave(data.num_edges) * size
    if "edge_weight" in data:
        copies.edge_weight = data.edge_weight.repeat(draws)
    if "transition" in settings:
        settings = {**settings, "transition": settings["transition"].repeat(draws)}
    table = draw(copies, seed, **settings)
    start, visited = table.index
    found = torch.zeros(2, draws, length + 1, size, size, dtype=torch.float64)
    place = start // size, table.length, start % size, visited % size
    found[0][place], found[1][place] = table.load.double(), table.count.double()
    return *found, table.own.double().view(draws, size, -1)
