"""Where a mask pays on molecules: MOSES-12k with each attention, alone and beside message passing.

    python scripts/reproduce/moses.py --quick                         # a trial
    python scripts/reproduce/moses.py --datasets logP --methods none "hop" "Linear"
    python scripts/reproduce/moses.py                                 # 3 seeds of all rows; 8 hours on one core
    python scripts/reproduce/moses.py --datasets "logP, fresh seeds" --runs 10             # seeds 10 to 19; 9 hours
    python scripts/reproduce/moses.py --datasets "autocorrelations, fresh seeds" --runs 5  # seeds 10 to 14; 1.5 hours

Targets: penalised logP, as in the ZINC benchmark, and Moreau-Broto autocorrelations of electronegativity at 1 to 8
bonds, which are computed from the graph, so that a mask of distances must win there. Four layers, 4 heads, kernel
``elu1``, batches of 128, 30 epochs, AdamW with a one-cycle schedule; widths give all rows about as many parameters.
Parameters of masks have 25 times the learning rate. Rows with RWSE add the random-walk encoding of 16 steps to the
types of atoms. The epoch is chosen on the validation part; no choice looks at the test part. Molecules and parts are
read from $TOPOMASK_DATA. The same command continues an interrupted one.

Rows of fresh seeds, from 10 on, answer what earlier seeds left open. Rows of 60 and 120 epochs give message passing
at least the processor time of the masks. Two comparisons were named before their runs, on the validation error by
Welch's interval, looked at once, when all ten seeds have ended: "GINE + hop" against "GINE + none, 60 epochs", and the
same with RWSE. All else is secondary. Batches of one seed have the same order in all rows; first weights are shared by
rows that differ in their epochs alone.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from _fitting import begin, fit_graphs, mlp, num_parameters
from _folds import DEAREST, Comparison
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import l1_loss
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv
from torch_geometric.transforms import AddRandomWalkPE, Compose

from pyg_topomask import nn, transforms
from pyg_topomask.ops.hops import hop_pairs
from pyg_topomask.run.errors import MissingDataError
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.formats import load_dataset

LAYERS, HEADS, BATCH, EPOCHS, RATE, DECAY, PARAMETERS = 4, 4, 128, 30, 2e-3, 1e-2, 180_000
HOPS, WALK_STEPS = 8, 16
ELECTRONEGATIVITY = torch.tensor([0, 0, 0.89, 0, 0, 0.49, 0.49, 0.89, 1.43, 0.03, 0.49, 0.41, 0.61])
"""Pauling's, relative to carbon, of the 13 types of atoms: C, C, O, C, C, N, N, O, F, S, N, Br, Cl."""

Attention = Callable[[int], Module]


def masked(width: int, *mask: Any, **settings: Any) -> Module:
    """Linear attention under one mask, or a mixture of several."""
    return nn.MaskedAttention(width, HEADS, "elu1", mask[0] if len(mask) == 1 else list(mask), **settings)


ATTENTIONS: dict[str, Attention | None] = {
    "none": None,
    "Linear": lambda width: masked(width, None),
    "GRF": lambda width: masked(width, nn.GRFMask(HEADS)),
    "GRF, f = 1": lambda width: masked(width, nn.GRFMask(HEADS, 10, initial=[1.0] * 11)),
    "hop": lambda width: masked(width, nn.HopMask(HEADS, HOPS)),
    "half hop": lambda width: masked(width, None, nn.HopMask(2, HOPS), mask_heads=[2, 2]),
    "ones + hop": lambda width: masked(width, None, nn.HopMask(HEADS, HOPS)),
    "k-MIP": lambda width: nn.KMIPAttention(width, HEADS, k=10),
    "Transformer": lambda width: nn.FullAttention(width, HEADS),
}
METHODS = [f"{conv}{name}" for conv in ("", "GINE + ") for name in ATTENTIONS if conv or name != "none"]
METHODS += [f"RWSE + {name}" for name in ("hop", "GINE + none", "GINE + half hop", "GINE + hop")]

LOGP, AUTO, FIRST_FRESH = "logP, fresh seeds", "autocorrelations, fresh seeds", 10
_GINE = [f"GINE + none{more}" for more in ("", ", 60 epochs", ", 120 epochs")]
_WITH = [f"RWSE + {name}" for name in ("Linear", "hop", "GINE + hop", *_GINE)]
FRESH = {LOGP: ["GINE + hop", *_GINE, *_WITH], AUTO: _WITH[1:-1]}
"""Data set -> rows of fresh seeds."""


def layers_and_epochs(method: str) -> tuple[str, int]:
    """The layers of a row, and its number of epochs."""
    found = re.fullmatch(r"(.+), (\d+) epochs", method)
    return (method, EPOCHS) if found is None else (found[1], int(found[2]))


def absent(dataset: str, method: str) -> bool:
    """Whether a data set has no row of a method."""
    return method not in FRESH.get(dataset, [*METHODS, f"GINE + none{DEAREST}"])


def model_of(method: str, width: int, targets: int) -> nn.GPSModel:
    """The stack of a row."""
    attention = ATTENTIONS[layers_and_epochs(method)[0].removeprefix("RWSE + ").removeprefix("GINE + ")]
    conv = (lambda _: GINEConv(mlp(width))) if "GINE" in method else None
    attn = None if attention is None else (lambda _: attention(width))
    channels = 13 + (WALK_STEPS if method.startswith("RWSE") else 0)
    return nn.GPSModel(channels, width, targets, LAYERS, conv, attn, 4 if conv else None, "add", head_layers=2)


def width_of(method: str, targets: int) -> int:
    """The width, a multiple of the heads, that comes closest to the wanted number of parameters."""
    sizes = {width: num_parameters(model_of(method, width, targets)) for width in range(48, 128, 4)}
    return min(sizes, key=lambda width: abs(sizes[width] - PARAMETERS))


@cache
def parts(target: str, quick: bool) -> dict[str, list[Data]]:
    """Training, validation and test graphs with their targets, ``y [1, T]``, which have mean 0 and deviation 1.

    Raises:
        MissingDataError: If the data are missing.
    """
    split = Path(os.environ.get("TOPOMASK_DATA", "data")) / "splits/moses12k/split.json"
    if not split.is_file():
        raise MissingDataError(f"MOSES-12k is missing ({split}); set the environment variable TOPOMASK_DATA")
    config = DatasetConfig(format="PyG-TUDataset", name="MOSES-12k", task_type="regression")
    graphs = list(load_dataset(config).graphs)
    of = autocorrelations if target != "logP" else lambda graph: graph.y.float().view(-1)
    values = torch.stack([of(graph) for graph in graphs])
    numbers = json.loads(split.read_text())
    train = values[numbers["train"]]
    values = values if target == "logP" else (values - train.mean(0)) / train.std(0)
    for graph, value in zip(graphs, values):
        graph.y = value[None]
    limit = 300 if quick else None
    return {part: [graphs[number] for number in numbers[part][:limit]] for part in numbers}


def autocorrelations(graph: Data) -> Tensor:
    """Sums of products of electronegativity over the pairs of atoms that are 1 to 8 bonds apart, ``[8]``."""
    charge = graph.x @ ELECTRONEGATIVITY
    (i, j), distance = hop_pairs(graph.edge_index, int(graph.num_nodes or 0), HOPS)
    return torch.zeros(HOPS + 1).index_add(0, distance, charge[i] * charge[j])[1:]


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    run += FIRST_FRESH * (row["dataset"] in FRESH)
    begin(run)
    data = parts(row["dataset"].partition(",")[0], out.name == "quick")
    targets = data["train"][0].y.size(1)
    model = model_of(row["method"], width_of(row["method"], targets), targets)
    flat = "f = 1" in row["method"]
    walks = {"num_walks": 16, "halt_prob": 0.2 if flat else 0.5, "max_length": 10 if flat else 4, "max_hops": HOPS}
    prepare = transforms.that_add(model.requires, seed=run, **walks)
    if row["method"].startswith("RWSE"):
        prepare = Compose([AddRandomWalkPE(WALK_STEPS, attr_name=None), prepare])
    graphs = {name: prepare(part) for name, part in data.items()}
    epochs = epochs * layers_and_epochs(row["method"])[1] // EPOCHS
    settings = {"epochs": epochs, "rate": RATE, "decay": DECAY, "mask_lr": row.get("mask_lr", 25.0)}
    return fit_graphs(model, graphs, l1_loss, l1_loss, BATCH, **settings) | {"trained": epochs}


COMPARISON = Comparison(
    __doc__,
    "moses",
    dict.fromkeys(("logP", "autocorrelations", *FRESH), EPOCHS),
    list(dict.fromkeys((*METHODS, *FRESH[LOGP]))),
    make_run,
    "Mean absolute errors after the epoch of the least validation error. Autocorrelations are scaled to deviation 1, "
    "and averaged over 1 to 8 bonds.",
    form=(1, 3),
    label="mean absolute error, test",
    absent=absent,
    optional=list(FRESH),
    longer="GINE + none",
)


if __name__ == "__main__":
    COMPARISON.start()
