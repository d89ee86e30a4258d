"""What a node sees: pictures of every attention for the documentation.

    python scripts/influence.py         # writes docs/figures/<attention>.png and docs/figures/start.png

Entry (i, j) of a matrix is the Frobenius norm of the derivative of node i's output with respect to node j's input,
relative to the largest entry of row i. The layers have their initial parameters and read random features. The graph
joins points of the unit square that are close to each other, numbered from left to right. On the graph, the colours are
the row that belongs to the star.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm
from PIL import Image
from torch_geometric.data import Data

from pyg_topomask import nn, testing
from pyg_topomask.viz.drawing import BAR, SEQUENTIAL, STAR, pyplot, save_figure

ROOT = Path(__file__).parents[1]
NUM_NODES, CHANNELS = 64, 8
RADIUS = 0.21  # points that are closer than this are neighbours
NODE = 24  # the star
STYLE: dict[str, Any] = {"cmap": SEQUENTIAL, "norm": PowerNorm(0.5, 0, 1)}

SETTINGS: dict[str, dict[str, Any]] = {
    "Masked": {"mask": nn.HeatMask(time=2.0)},
    "KMIP": {"k": 4},
    "Primal": {"num_samples": 8, "rank": 8},
    "Primphormer": {"num_virtual": 8, "rank": 8},
    "BigBird": {"num_random": 1},
    "SAN": {"gamma": 0.1},
}
"""Settings of layers that have not their defaults."""
START: dict[str, dict[str, Any]] = {
    "no mask": {"name": "Linear"},
    "hop mask: distances": {"name": "Masked", "mask": nn.HopMask()},
    "GRF: random walks": {"name": "GRF"},
    "heat kernel": {"name": "Masked"},
    "k-MIP: 4 best keys": {"name": "KMIP"},
    "Exphormer: expander": {"name": "Exphormer"},
}


def example() -> Data:
    """The graph, with positions and random features."""
    generator = torch.Generator().manual_seed(3)
    pos = spread_points(generator)
    pos = pos[pos[:, 0].argsort()]
    close = torch.cdist(pos, pos) < RADIUS
    edge_index = close.fill_diagonal_(False).nonzero().T.contiguous()
    return Data(torch.randn(NUM_NODES, CHANNELS, generator=generator), edge_index, pos=pos)


def spread_points(generator: torch.Generator) -> torch.Tensor:
    """Points of the unit square, each the farthest of twelve candidates from those before it."""
    pos = torch.rand(1, 2, generator=generator)
    while len(pos) < NUM_NODES:
        candidates = torch.rand(12, 2, generator=generator)
        pos = torch.cat([pos, candidates[None, torch.cdist(candidates, pos).amin(dim=1).argmax()]])
    return pos


def influence(name: str, data: Data, **settings: Any) -> torch.Tensor:
    """The matrix ``[N, N]`` of the attention with this name."""
    torch.manual_seed(0)
    layer = nn.ATTENTION[name](CHANNELS, **SETTINGS.get(name, {}) | settings).eval()
    (graph,) = testing.prepared(layer, [data], num_walks=64, degree=3, num_virtual=1)
    derivative = torch.autograd.functional.jacobian(lambda x: layer(x, graph=graph), data.x)  # [N, C, N, C]
    norms = torch.linalg.vector_norm(derivative, dim=(1, 3))
    return norms / norms.amax(dim=1, keepdim=True)


def draw_row(panel: Any, matrix: torch.Tensor, data: Data) -> None:
    """The row of the star on the graph."""
    panel.add_collection(LineCollection(data.pos[data.edge_index.T].tolist(), colors="0.75", linewidths=0.7, zorder=1))
    panel.scatter(*data.pos.T, s=60, c=matrix[NODE], edgecolors="0.35", linewidths=0.5, **STYLE)
    panel.scatter(*data.pos[NODE], s=260, c=matrix[NODE, NODE], **STAR, **STYLE)
    panel.set_aspect("equal")
    panel.axis("off")


def draw_layer(name: str, data: Data) -> Any:
    """The picture of one attention: the matrix, and a row of it on the graph."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(7, 3.4), layout="constrained")
    matrix = influence(name, data)
    left.imshow(matrix.numpy(), interpolation="nearest", **STYLE)
    left.set(xticks=[], yticks=[], xlabel="input of node j", ylabel="output of node i", title="influence of j on i")
    draw_row(right, matrix, data)
    right.set_title("influence on the star")
    return figure


def draw_start(data: Data) -> Any:
    """The picture of the start page: one row of several attentions."""
    figure, axes = pyplot().subplots(2, 3, figsize=(9.6, 6.2), layout="constrained")
    for panel, (title, settings) in zip(axes.flat, START.items()):
        draw_row(panel, influence(data=data, **settings), data)
        panel.set_title(title, fontsize=12)
    figure.colorbar(panel.collections[1], ax=axes, label="influence on the star, relative to the largest", **BAR)
    return figure


def save(figure: Any, path: Path) -> Path:
    """Write a picture of 96 colours, which takes half of the space."""
    with Image.open(save_figure(figure, path, dpi=90)) as picture:
        picture.convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    return path


def main() -> None:
    """Write all pictures."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="folder of the pictures")
    out, data = made.parse_args().out, example()
    for name in nn.ATTENTION:
        save(draw_layer(name, data), out / f"{name.lower()}.png")
    print(f"wrote {len(nn.ATTENTION)} pictures and {save(draw_start(data), out / 'start.png')}")


if __name__ == "__main__":
    main()
