"""A GPS layer with a convolution, and attention: half of it sees all nodes, half weighs nodes by their distance."""

from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import GPSLayer, HopMask, MaskedAttention
from pyg_topomask.transforms import AddHops

graphs = AddHops()(FakeDataset(64, avg_num_nodes=30, num_channels=32))  # pairs of nodes up to 8 hops apart
attn = MaskedAttention(32, heads=4, kernel="elu1", mask=[None, HopMask(heads=2)], mask_heads=[2, 2])
layer = GPSLayer(32, conv=GCNConv(32, 32), attn=attn)
for batch in DataLoader(graphs, batch_size=8):
    x = layer(batch.x, batch.edge_index, graph=batch)  # [N, 32]
