"""A GPS layer with a convolution and attention under a topological mask, on batches of generated graphs."""

from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.datasets import MotifDataset
from pyg_topomask.nn import GPSLayer, GRFAttention
from pyg_topomask.transforms import AddRandomWalks

graphs = MotifDataset("data/motif", "caveman", num_graphs=64, num_nodes=30, pre_transform=AddRandomWalks(seed=0))
layer = GPSLayer(5, conv=GCNConv(5, 5), attn=GRFAttention(5))
for batch in DataLoader(graphs, batch_size=8):
    x = layer(batch.x, batch.edge_index, graph=batch)  # [N, 5]
