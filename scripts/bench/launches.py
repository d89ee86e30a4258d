"""What one training step asks of a GPU: kernels, bytes that they read and write, waits of the host. It needs no GPU.

A step is a forward and a backward pass of four GPS layers (GINEConv and an attention, batch norm, feed-forward part) on
a new batch of 128 graphs of 12 to 34 nodes, clipping and AdamW. Launches are an estimate: see `_as_if_cuda`. "Masked:"
precedes the name of a mask of `MaskedAttention`, and "PyG" is ``GPSConv`` with the same convolution.

Run: python scripts/bench/launches.py [--only NAME …] [--sites] [--json FILE]
"""

import argparse
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from _as_if_cuda import DEVICE, AsIfCuda, to_cuda
from _measure import save_json
from attention import PyGStack, gine
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import l1_loss
from torch.optim import AdamW, Optimizer
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool
from torch_geometric.utils import to_undirected

from pyg_topomask.nn import ATTENTION, MASK, GPSModel, MaskedAttention, auxiliary_loss
from pyg_topomask.testing.examples import prepared

CHANNELS, HEADS, LAYERS, OUT = 64, 4, 4, 10
SIZES = [12 + 7 * number % 23 for number in range(128)]
GRID = 24  # nodes of each graph for masks of grids
PYG = {"PyG multihead": "multihead", "PyG performer": "performer"}


class PyGModel(Module):
    """PyG's layers between an encoder and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.encoder, self.edges = (Linear(CHANNELS, CHANNELS) for _ in range(2))
        self.head = Linear(CHANNELS, OUT)
        self.layers = PyGStack(LAYERS, CHANNELS, HEADS, kind, dropout=0.1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, graph: Batch, edge_attr: Tensor) -> Tensor:
        x = self.layers(self.encoder(x), edge_index, batch, graph, self.edges(edge_attr))
        return self.head(global_mean_pool(x, batch, graph.num_graphs))  # type: ignore[no-any-return]


def attention_of(name: str) -> Module:
    """The attention of that name, with its default settings."""
    if not name.startswith("Masked:"):
        return ATTENTION[name](CHANNELS, heads=HEADS)
    cls = MASK[name.removeprefix("Masked:")]
    settings = cls.examples()[0]
    settings |= {"grid_shape": (GRID,)} if "grid_shape" in settings else {}
    settings |= {"heads": HEADS} if "heads" in signature(cls).parameters else {}
    return MaskedAttention(CHANNELS, heads=HEADS, mask=cls(**settings))


def model_of(name: str) -> Module:
    """Four layers with the attention of that name."""
    if name in PYG:
        return PyGModel(PYG[name])
    conv, attn = (lambda _: gine(CHANNELS)), (lambda _: attention_of(name))
    return GPSModel(CHANNELS, CHANNELS, OUT, LAYERS, conv, attn, CHANNELS, "mean", dropout=0.1)


def graphs_of(name: str) -> list[Data]:
    """The graphs, with the attributes that the attention of that name requires."""
    attn = None if name in PYG else attention_of(name)
    on_grids = "grid_shape" in getattr(attn, "requires", ())
    graphs = []
    for number, size in enumerate(SIZES):
        generator = torch.Generator().manual_seed(number)
        nodes = GRID if on_grids else size
        edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        if not on_grids:
            more = torch.randint(nodes, (2, max(1, nodes // 10)), generator=generator)
            edges = torch.cat([edges, more[:, more[0] != more[1]]], dim=1)
        edges = to_undirected(edges, num_nodes=nodes)
        x, edge_attr = (torch.randn(rows, CHANNELS, generator=generator) for rows in (nodes, edges.size(1)))
        graphs.append(Data(x=x, edge_index=edges, edge_attr=edge_attr, y=torch.randn(1, OUT, generator=generator)))
    return graphs if attn is None else prepared(attn, graphs)


def clip(grads: list[Tensor]) -> None:
    """``clip_grad_norm_``, which asks C++ for the device of the gradients."""
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    torch._foreach_mul_(grads, (1 / (norm + 1e-6)).clamp(max=1))


def train_step(model: Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    """The loss of one step of training."""
    optimizer.zero_grad()
    out = model(batch.x, batch.edge_index, batch.batch, batch, batch.edge_attr)
    loss = l1_loss(out, batch.y) + auxiliary_loss(model)
    loss.backward()
    clip([x.grad for x in model.parameters() if x.grad is not None])
    optimizer.step()
    return loss


def step_of(name: str, graphs: list[Data]) -> tuple[AsIfCuda, Tensor]:
    """What the second of two steps asks for, and its loss."""
    torch.manual_seed(0)
    model = model_of(name)
    with AsIfCuda() as gpu:
        optimizer = AdamW(to_cuda(model).parameters(), lr=1e-3, foreach=True)
        for _ in range(2):
            batch = Batch.from_data_list(graphs).to(DEVICE)
            gpu.clear()
            loss = train_step(model, optimizer, batch)
    return gpu, loss


NAMES = [*PYG, *ATTENTION, *(f"Masked:{name}" for name in MASK)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    options.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", default=NAMES, help="attentions and masks")
    options.add_argument("--sites", action="store_true", help="also show what waits, and the kernels")
    options.add_argument("--json", type=Path, help="file of the report")
    given = options.parse_args()
    warnings.simplefilter("ignore")  # torch says that there is no CUDA
    print(f"{'one step':22} {'launches':>8} {'waits':>6} {'MB':>6}")
    report: dict[str, Any] = {}
    for name in given.only:
        gpu, _ = step_of(name, graphs_of(name))
        report[name] = {"launches": gpu.launches.total(), "waits": gpu.waits.total(), "bytes": gpu.moved}
        print(f"{name:22} {gpu.launches.total():8d} {gpu.waits.total():6d} {gpu.moved / 1e6:6.0f}", flush=True)
        if given.sites:
            for place, count in [*gpu.waits.most_common(), *gpu.launches.most_common(15)]:
                print(f"    {count:5d} {place}")
    if given.json is not None:
        save_json(given.json, report)


if __name__ == "__main__":
    main()
