"""Dynamic GKAT: walks that are drawn again in each epoch and follow the attention of the first layer."""

import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import GKATAttention, GPSModel, parameter_groups, redraw_walks
from pyg_topomask.transforms import AddRandomWalks

walk = AddRandomWalks(16, 4, halt_prob=0.0, independent=False, seed=0, transition="attention")
graphs = [walk(graph) for graph in FakeDataset(32, avg_num_nodes=50, num_channels=8, num_classes=3)]
model = GPSModel(8, 32, 3, 2, lambda i: GCNConv(32, 32), lambda i: GKATAttention(32, heads=4), pool="mean")
optimizer = torch.optim.Adam(parameter_groups(model, lr=1e-3))
layer = next(module for module in model.modules() if isinstance(module, GKATAttention))  # the first


def forward(batch):
    return model(batch.x, batch.edge_index, batch.batch, batch)


for epoch in range(3):
    if epoch > 0:
        model.eval()
        graphs = redraw_walks(graphs, walk, epoch, layer, forward)
    model.train()
    for batch in DataLoader(graphs, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(batch), batch.y)
        loss.backward()
        optimizer.step()
