"""Graphs, and branches that say what they were given, for the tests of GraphGPS layers."""

import torch
from torch.nn import Linear, Module
from torch_geometric.data import Batch

from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks

NAMES = ("path", "isolated", "star")


def batch_of(*names):
    return Batch.from_data_list([AddRandomWalks(seed=0)(GRAPHS[name].clone()) for name in names or NAMES])


class Conv(Module):
    """Sums neighbours; where asked to, updates edges as well."""

    def __init__(self, channels=8, edges=False):
        super().__init__()
        self.lin, self.edges = Linear(channels, channels), edges

    def forward(self, x, edge_index, edge_attr=None):
        message = x[edge_index[0]] if edge_attr is None else x[edge_index[0]] + edge_attr
        out = self.lin(torch.zeros_like(x).index_add(0, edge_index[1], message))
        return (out, 2 * edge_attr) if self.edges else out


class Carrying(Module):
    """Hands on the running sum of each graph's mean, and says what it was handed."""

    requires = ("walk_index",)

    def initial_carry(self, num_graphs):
        return torch.zeros(num_graphs, 8)

    def forward(self, x, batch=None, graph=None, carry=None):
        batch = torch.zeros(x.size(0), dtype=torch.long) if batch is None else batch
        start = self.initial_carry(int(batch.max()) + 1) if carry is None else carry
        start = start + torch.zeros_like(start).index_add(0, batch, x)
        out = x + start[batch]
        self.auxiliary_loss = start.square().sum()
        return out if carry is None else (out, start)
