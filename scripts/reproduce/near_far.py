"""Near against far in one target: which layers tell a node's surroundings apart from its whole graph?

    python scripts/reproduce/near_far.py --quick        # a trial
    python scripts/reproduce/near_far.py                # all rows, 3 seeds; 9 minutes on one core

Graphs are those of the task "share" of `LongRangeDataset`: random points with 4 labels, each linked to its 3 nearest
ones. The target of a node is the share of its own label within 4 hops, minus the share in its graph. So a layer must
see both what is near and all nodes. Rows have equal widths and layers, unless they name more, and equal epochs.
Parameters of masks have 25 times the learning rate. The epoch is chosen on the validation part; no choice looks at the
test part. The same command continues an interrupted one.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from _fitting import begin, fit_graphs, gin
from _folds import Comparison
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import mse_loss
from torch_geometric.data import Data

from pyg_topomask import datasets, nn, transforms

WIDTH, HEADS, BATCH, EPOCHS, RATE, DECAY = 32, 4, 8, 40, 8e-3, 1e-4
NODES, GRAPHS = 96, {"train": 256, "val": 64, "test": 64}
HOPS, WALKS = 8, {"num_walks": 16, "halt_prob": 0.2}
METHODS: dict[str, tuple[bool, Sequence[str], int]] = {
    "GIN": (True, (), 2),
    "GIN with 4 layers": (True, (), 4),
    "Linear": (False, ("none",), 2),
    "GIN + Linear": (True, ("none",), 2),
    "GRF": (False, ("GRF",), 2),
    "hop": (False, ("hop",), 2),
    "half Linear, half GRF": (False, ("none", "GRF"), 2),
    "half Linear, half hop": (False, ("none", "hop"), 2),
}
"""Whether there is message passing, the masks between which the heads are divided, and the number of layers."""

MASKS = {"none": lambda heads: None, "GRF": nn.GRFMask, "hop": partial(nn.HopMask, max_hops=HOPS)}


def attention(names: Sequence[str]) -> Module:
    """Linear attention under these masks."""
    heads = HEADS // len(names)
    masks = [MASKS[name](heads) for name in names]
    if len(masks) == 1:
        return nn.MaskedAttention(WIDTH, HEADS, "elu1", masks[0])
    return nn.MaskedAttention(WIDTH, HEADS, "elu1", masks, mask_heads=[heads] * len(masks))


def model_of(method: str) -> nn.GPSModel:
    """The stack of a row."""
    messages, masks, layers = METHODS[method]
    conv, attn = (lambda _: gin(WIDTH)) if messages else None, (lambda _: attention(masks)) if masks else None
    return nn.GPSModel(4, WIDTH, 1, layers, conv, attn, head_layers=2)


@cache
def graphs_of(count: int) -> list[Data]:
    """Graphs whose targets are near shares minus far ones, ``y [N, 1]``, scaled to deviation 1."""
    with tempfile.TemporaryDirectory() as folder:
        graphs = list(datasets.LongRangeDataset(folder, "share", count, NODES))
    for graph in graphs:
        graph.y = (graph.y - graph.x @ graph.x.mean(0))[:, None]
    scale = torch.cat([graph.y for graph in graphs]).std()
    for graph in graphs:
        graph.y /= scale
    return graphs


def relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared error over the variance."""
    return mse_loss(found, wanted) / wanted.var(correction=0)


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    begin(run)
    model = model_of(row["method"])
    sizes = {name: count // 8 if out.name == "quick" else count for name, count in GRAPHS.items()}
    graphs = iter(transforms.that_add(model.requires, seed=run, max_hops=HOPS, **WALKS)(graphs_of(sum(sizes.values()))))
    parts = {name: [next(graphs) for _ in range(count)] for name, count in sizes.items()}
    return fit_graphs(model, parts, mse_loss, relative_error, BATCH, epochs=epochs, rate=RATE, decay=DECAY)


COMPARISON = Comparison(
    __doc__,
    "near_far",
    {"share": EPOCHS},
    METHODS,
    make_run,
    "Mean squared error over the variance, after the epoch of the least validation error.",
    form=(1, 3),
    label="mean squared error over variance, test",
    longer="GIN with 4 layers",
)


if __name__ == "__main__":
    COMPARISON.start()
