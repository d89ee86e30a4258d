"""A GPS layer: a convolution beside attention under a topological mask, on batches of generated graphs."""

from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import GPSLayer, GRFAttention
from pyg_topomask.transforms import AddRandomWalks

data = FakeDataset(num_graphs=32, num_channels=64, transform=AddRandomWalks(seed=0))
layer = GPSLayer(64, conv=GCNConv(64, 64), attn=GRFAttention(64, heads=4))
for batch in DataLoader(data, batch_size=8):
    x = layer(batch.x, batch.edge_index, graph=batch)  # [N, 64]
