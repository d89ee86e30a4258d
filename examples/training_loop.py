"""A complete training loop: which of these graphs contain a planted circle?"""

import torch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.datasets import MotifDataset
from pyg_topomask.nn import GPSModel, GRFAttention
from pyg_topomask.transforms import AddRandomWalks

torch.manual_seed(0)
graphs = MotifDataset(
    "data/circle", "circle", num_graphs=256, num_nodes=30, pre_transform=AddRandomWalks(seed=0)
).shuffle()
model = GPSModel(
    in_channels=5,
    channels=32,
    out_channels=2,
    num_layers=2,
    conv=lambda i: GCNConv(32, 32),
    attn=lambda i: GRFAttention(32, heads=4),
    pool="mean",
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(5):
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
