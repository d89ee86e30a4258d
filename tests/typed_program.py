"""What a user writes; type checkers must know the types of all of it (`test_types.py`)."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import Compose
from typing_extensions import assert_type

from pyg_topomask import nn, operators, transforms

graph = Data(x=torch.randn(4, 16), edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
assert_type(transforms.AddRandomWalks()(graph), Data)
assert_type(transforms.AddHops()([graph, graph]), list[Data])
assert_type(transforms.AddHops()(FakeDataset(2)), FakeDataset)
graph = Compose([transforms.AddRandomWalks(), transforms.AddHops(max_hops=2)])(graph)
batch = Batch.from_data_list([graph, graph])
x, edge_index = torch.randn(8, 16), torch.cat([graph.edge_index, graph.edge_index + 4], dim=1)

attn = nn.GRFAttention(16, heads=2)
assert_type(attn(x, graph=batch), Tensor)
assert_type(attn(x[:4], None, graph), Tensor)
assert_type(nn.KMIPAttention(16)(x), Tensor)  # one graph
assert_type(nn.PrimphormerAttention(16)(x, carry=torch.zeros(1, 30)), tuple[Tensor, Any])
out, (pairs, weights) = attn(x, graph=batch, return_attention_weights=True)
assert_type(pairs, Tensor)
mask = nn.HopMask(heads=2)
assert_type(mask(batch), operators.MaskOperator)
assert_type(mask(batch) @ x.view(8, 2, 8), Tensor)
masked = nn.MaskedAttention(16, heads=4, mask=[None, mask], mask_heads=[2, 2])
layer = nn.GPSLayer(16, conv=GCNConv(16, 16), attn=masked)
assert_type(layer(x, edge_index, graph=batch), Tensor)
assert_type(nn.GPSConv(16, GCNConv(16, 16))(x, edge_index, graph=batch), Tensor)
stack = nn.GPSStack(16, 2, lambda layer: GCNConv(16, 16), lambda layer: nn.GRFAttention(16))
assert_type(stack(x, edge_index, graph=batch), Tensor)
model = nn.GPSModel(16, 16, 1, 2, conv="gcn", attn="grf", pool="mean")
assert_type(model(x, edge_index, graph=batch), Tensor)
