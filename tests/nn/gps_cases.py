"""Graphs, branches that say what they were given, and norms by hand, for the tests of GraphGPS layers."""

import torch
from torch.nn import BatchNorm1d, Linear, Module
from torch_geometric.data import Batch
from torch_geometric.nn import GraphNorm
from torch_geometric.nn import LayerNorm as OneNormPerGraph

from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

NAMES = ("path", "isolated", "star")


def batch_of(*names):
    """Graphs with walks and expander edges; ``"empty"`` has no nodes."""
    walks, edges = AddRandomWalks(seed=0), AddExpanderEdges(degree=2, num_virtual=1, seed=0)
    parts = [empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names or NAMES]
    return Batch.from_data_list([edges(walks(part)) for part in parts])


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
    """Hands on the running sum of each graph's nodes, and says what it was handed."""

    requires = ("walk_index",)

    def initial_carry(self, num_graphs):
        return torch.zeros(num_graphs, 8)

    def forward(self, x, batch=None, graph=None, carry=None):
        batch = torch.zeros(x.size(0), dtype=torch.long) if batch is None else batch
        start = self.initial_carry(int(batch.max()) + 1) if carry is None else carry
        start = start + torch.zeros_like(start).index_add(0, batch, x)
        self.auxiliary_loss = start.square().sum()
        out = x + start[batch]
        return out if carry is None else (out, start)


def randomise(module):
    """Moves the numbers of norms off their start."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if "norm" in name and value.is_floating_point():
            value.data.uniform_(0.5, 1.5)
    return module


def by_hand(norm, x, batch):
    """A norm in evaluation mode by its definition."""
    if norm is None:
        return x
    if isinstance(norm, BatchNorm1d):
        return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    dims = (0, 1) if isinstance(norm, OneNormPerGraph) else 0 if isinstance(norm, GraphNorm) else 1
    out = torch.empty_like(x)
    for graph in batch.unique():
        rows = x[batch == graph]
        rows = rows - getattr(norm, "mean_scale", 1) * rows.mean(dims, keepdim=True)
        out[batch == graph] = rows / (rows.square().mean(dims, keepdim=True) + norm.eps).sqrt()
    return out * norm.weight + norm.bias
