"""GKATConv, the layer of GKAT in the form of GAT, and its mask, on graphs with and without a planted motif."""

import torch
from torch_geometric.loader import DataLoader

from pyg_topomask.datasets import MotifDataset
from pyg_topomask.nn import GKATConv, RWGNKMask
from pyg_topomask.transforms import AddRandomWalks

walk = AddRandomWalks(50, max_length=3, halt_prob=0.0, independent=False, seed=0)
graphs = MotifDataset("data/motif", "caveman", num_graphs=64, transform=walk)  # which have a caveman graph inside?
conv = GKATConv(5, 8, heads=2, max_length=3)
for batch in DataLoader(graphs, batch_size=16):
    x = conv(batch.x, graph=batch)  # [N, 16]
    mask = RWGNKMask(max_length=3)(batch)  # the kernel matrix itself, as an operator
    smooth = mask @ batch.x / (mask @ torch.ones(batch.num_nodes, 1))
