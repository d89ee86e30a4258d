"""A complete training loop: which of these graphs contain a planted circle?"""

import torch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.datasets import MotifDataset
from pyg_topomask.nn import GPSModel, HopMask, MaskedAttention, parameter_groups
from pyg_topomask.transforms import AddHops

torch.manual_seed(0)
graphs = MotifDataset("data/circle", "circle", num_graphs=256, num_nodes=30, pre_transform=AddHops()).shuffle()


def attention(layer):  # half of the heads see all nodes of the graph, half weigh nodes by their distance
    return MaskedAttention(32, heads=4, kernel="elu1", mask=[None, HopMask(heads=2)], mask_heads=[2, 2])


model = GPSModel(
    in_channels=5,
    channels=32,
    out_channels=2,
    num_layers=2,
    conv=lambda i: GCNConv(32, 32),
    attn=attention,
    pool="mean",
)
optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-3))  # masks learn faster than the rest

for epoch in range(1, 6):
    model.train()
    for batch in DataLoader(graphs[:192], batch_size=32, shuffle=True):
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index, batch.batch, graph=batch)  # [32, 2]
        loss = torch.nn.functional.cross_entropy(out, batch.y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")

model.eval()
test = next(iter(DataLoader(graphs[192:], batch_size=64)))
with torch.no_grad():
    right = model(test.x, test.edge_index, test.batch, graph=test).argmax(dim=1) == test.y
accuracy = right.float().mean().item()
print(f"accuracy on 64 unseen graphs: {accuracy:.2f}")
