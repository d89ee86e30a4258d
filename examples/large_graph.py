"""Training on a large graph in random parts, each with its own walks."""

import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCNConv

from pyg_topomask.loader import RandomPartitionLoader
from pyg_topomask.nn import GPSModel, GRFAttention, parameter_groups
from pyg_topomask.transforms import AddRandomWalks

walks = AddRandomWalks(num_walks=8, max_length=3, seed=0)
data = FakeDataset(num_graphs=1, avg_num_nodes=3000, num_channels=16, num_classes=4, task="node")[0]
data.train_mask = torch.rand(data.num_nodes) < 0.5
model = GPSModel(16, 32, 4, 2, lambda i: GCNConv(32, 32), lambda i: GRFAttention(32, heads=4, max_length=3))
optimizer = torch.optim.Adam(parameter_groups(model, lr=1e-3))
loader = RandomPartitionLoader(data, num_parts=5, transform=walks)

for _ in range(3):
    model.train()
    for part in loader:  # new parts in each epoch
        optimizer.zero_grad()
        out = model(part.x, part.edge_index, graph=part)
        loss = torch.nn.functional.cross_entropy(out[part.train_mask], part.y[part.train_mask])
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    out = model(data.x, data.edge_index, graph=walks(data))  # the whole graph

parts = RandomPartitionLoader(data, num_parts=5, transform=walks, shuffle=False)
parts.set_epoch(0)  # the same parts and walks in every evaluation
right = 0
with torch.no_grad():
    for part in parts:  # if the whole graph does not fit; each node is in one part
        predicted = model(part.x, part.edge_index, graph=part).argmax(dim=1)
        right += int((predicted == part.y)[~part.train_mask].sum())
accuracy = right / int((~data.train_mask).sum())
print(f"accuracy on nodes outside the training mask: {accuracy:.2f}")
