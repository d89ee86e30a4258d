"""Images as grids: attention alone reads handwritten digits, because a Toeplitz mask knows where pixels are."""

import torch
from torch_geometric.loader import DataLoader

from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.nn import GPSModel, MaskedAttention, ToeplitzMask, parameter_groups
from pyg_topomask.transforms import AddGridShape

torch.manual_seed(0)
digits = DigitsDataset("data/digits", pre_transform=AddGridShape()).shuffle()  # 1,797 images of 8 × 8 pixels
num_test = len(digits) // 10


def attention(layer):
    return MaskedAttention(32, heads=4, mask=ToeplitzMask((8, 8), heads=4))


# No convolution and no encoding of positions: without the mask, a shuffled image would look the same.
model = GPSModel(1, 32, 10, num_layers=3, attn=attention, pool="mean")
optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-3))
rates = [group["lr"] for group in optimizer.param_groups]  # masks learn faster than the rest
train_loader = DataLoader(digits[num_test:], batch_size=64, shuffle=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, epochs=8, steps_per_epoch=len(train_loader))

for epoch in range(1, 9):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index, batch.batch, graph=batch)
        torch.nn.functional.cross_entropy(out, batch.y).backward()
        optimizer.step()
        schedule.step()

    model.eval()
    with torch.no_grad():
        test = next(iter(DataLoader(digits[:num_test], batch_size=num_test)))
        right = model(test.x, test.edge_index, test.batch, graph=test).argmax(dim=1) == test.y
    accuracy = right.float().mean().item()
    print(f"epoch {epoch}: test accuracy {accuracy:.3f}")
