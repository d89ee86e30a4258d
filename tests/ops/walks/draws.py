"""Walks that the tests of sampling share."""

import torch

from pyg_topomask.ops import sample_walks


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draw(data, seed=0, **settings):
    settings = {"num_walks": 8, "max_length": 3, "halt_prob": 0.3, **settings}
    weight = data.get("edge_weight")
    return sample_walks(data.edge_index, data.num_nodes, edge_weight=weight, generator=seeded(seed), **settings)
