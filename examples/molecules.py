"""Classification of molecules: convolution and masked attention side by side, with random-walk encodings."""

import torch
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv
from torch_geometric.transforms import Compose

from pyg_topomask.nn import GPSModel, HopMask, MaskedAttention, parameter_groups
from pyg_topomask.transforms import AddHops, AddRandomWalkEncoding

torch.manual_seed(0)
prepare = Compose([AddRandomWalkEncoding(range(1, 17)), AddHops()])
molecules = TUDataset("data/TUDataset", "NCI1", pre_transform=prepare).shuffle()  # 4,110 compounds, x is the element
num_test = len(molecules) // 10
train_loader = DataLoader(molecules[num_test:], batch_size=64, shuffle=True)
test_loader = DataLoader(molecules[:num_test], batch_size=256)


def conv(layer):
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    return GINConv(mlp)


def attention(layer):  # half of the heads see all nodes of the graph, half weigh nodes by their distance
    return MaskedAttention(64, heads=4, kernel="elu1", mask=[None, HopMask(heads=2)], mask_heads=[2, 2])


model = GPSModel(
    in_channels=molecules.num_features + 16,
    channels=64,
    out_channels=molecules.num_classes,
    num_layers=3,
    conv=conv,
    attn=attention,
    pool="add",
    dropout=0.1,
)
optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3))  # masks learn faster than the rest


def predict(batch):
    x = torch.cat([batch.x, batch.random_walk_diagonal], dim=1)
    return model(x, batch.edge_index, batch.batch, graph=batch)  # [number of graphs, number of classes]


for epoch in range(1, 6):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(predict(batch), batch.y).backward()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        right = sum(int((predict(batch).argmax(dim=1) == batch.y).sum()) for batch in test_loader)
    accuracy = right / num_test
    print(f"epoch {epoch}: test accuracy {accuracy:.3f}")
