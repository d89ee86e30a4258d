"""Two masks in the general attention: heat on the graph, and a function of the distance in a spanning tree."""

from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader

from pyg_topomask.nn import HeatMask, MaskedAttention, TreeMask
from pyg_topomask.transforms import AddTreeOrder

# TreeMask needs a transform; the error of a mask names the one that is missing.
graphs = AddTreeOrder()(FakeDataset(32, avg_num_nodes=50, num_channels=64))
heat = MaskedAttention(64, heads=4, mask=HeatMask(heads=4))  # needs no transform
tree = MaskedAttention(64, heads=4, mask=TreeMask(heads=4), kernel="softmax")
for batch in DataLoader(graphs, batch_size=8):
    x = batch.x + heat(batch.x, graph=batch)  # [N, 64]
    x = x + tree(x, graph=batch)
