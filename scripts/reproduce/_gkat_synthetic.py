"""Motifs and induced cycles of GKAT's paper (Sections 5.1 and 5.3): models, and training in the time of GKAT."""

import argparse
import copy
import itertools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _gkat import fresh_copy, num_parameters, parser, remembered, row_of, train_until_flat
from _tables import SPREAD, positive, read_options
from torch import Tensor, no_grad, set_num_threads
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import cross_entropy, elu
from torch.optim import Adam
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import ChebConv, GATConv, GCNConv, global_mean_pool

from pyg_topomask.datasets import InducedCycleDataset, MotifDataset
from pyg_topomask.nn import GKATAttention, GKATConv
from pyg_topomask.transforms import AddRandomWalks

METHODS = ("GKAT", "GAT", "GCN", "SGC")
NUM_WALKS, BATCH_SIZE, PATIENCE = 50, 128, 80
MOTIF_FEATURES, MOTIF_LENGTH, CYCLE_LENGTH = 5, 3, 6
GAT_HEADS = {2: (8, 1), 3: (4, 2, 1), 4: (4, 2, 1, 1), 5: (2, 2, 2, 1, 1), 6: (3, 2, 1, 1, 1, 1)}
GCN_WIDTHS = {2: (14, 14), 3: (10, 10, 10), 4: (8, 8, 8, 8), 5: (10, 8, 6, 6, 6), 6: (10, 6, 6, 6, 6, 6)}
SGC_WIDTHS = {2: (10, 8), 3: (8, 6, 6), 4: (8, 5, 4, 4), 5: (6, 5, 4, 4, 4), 6: (6, 4, 4, 4, 4, 3)}
SGC_FILTERS = {2: (4, 2), 3: (4, 2, 2), 4: (8, 2, 2, 2), 5: (8, 2, 2, 2, 2), 6: (8, 2, 2, 2, 2, 2)}
"""By the number of layers: each layer's heads of width 4, widths, and Chebyshev filters, from the paper's Table 5."""


class GraphClassifier(Module):
    """Graph layers with ELU, mean pooling and a linear layer.

    Args:
        layers: Convolutions, attentions, and linear layers without ELU.
        width: Width of the last layer's output.
        num_classes: Number of classes.
    """

    def __init__(self, layers: Sequence[Module], width: int, num_classes: int = 2) -> None:
        super().__init__()
        self.layers, self.out = ModuleList(layers), Linear(width, num_classes)

    def forward(self, data: Batch) -> Tensor:
        """Logits, one row for each graph."""
        x = data.x
        for layer in self.layers:
            if isinstance(layer, Linear):
                x = layer(x)
            elif hasattr(layer, "requires"):
                x = elu(layer(x, data.batch, data))
            else:
                x = elu(layer(x, data.edge_index))
        return self.out(global_mean_pool(x, data.batch, data.num_graphs))


def motif_gkat(kernel: str = "softmax_rf") -> Module:
    """Two layers of two heads of width 9, 16 random features."""
    layers = [GKATAttention(18, 2, 16, kernel, max_length=MOTIF_LENGTH) for _ in range(2)]
    return GraphClassifier([Linear(MOTIF_FEATURES, 18), *layers], 18)


def motif_baseline(method: str, num_layers: int = 2) -> Module:
    """GAT with two heads, GCN, or SGC with two Chebyshev filters, with about as many parameters as GKAT."""

    def build(width: int) -> Module:
        channels = 2 * width if method == "GAT" else width
        widths = [MOTIF_FEATURES, *[channels] * num_layers]
        layers = {
            "GAT": lambda size: GATConv(size, width, 2),
            "GCN": lambda size: GCNConv(size, width),
            "SGC": lambda size: ChebConv(size, width, K=2),
        }[method]
        return GraphClassifier([layers(size) for size in widths[:-1]], channels)

    budget = num_parameters(motif_gkat())
    above = 1 + bisect_left(range(1, 129), budget, key=lambda width: num_parameters(build(width)))
    return min(build(above - 1), build(above), key=lambda model: abs(num_parameters(model) - budget))


def cycle_gkat() -> Module:
    """Two layers of 8 and 1 heads of width 4 in the form of GAT, with 242 parameters as in the paper."""
    first = GKATConv(1, 4, 8, elu=False, bias=False, max_length=CYCLE_LENGTH)
    second = GKATConv(32, 4, 1, elu=False, bias=False, max_length=CYCLE_LENGTH)
    return GraphClassifier([first, second], 4)


def cycle_baseline(method: str, num_layers: int = 2) -> Module:
    """GAT, GCN or SGC with 2 to 6 layers and the sizes of the paper's Table 5."""
    if method == "GAT":
        heads = GAT_HEADS[num_layers]
        widths = [1, *(4 * number for number in heads)]
        layers = [GATConv(width, 4, number, bias=False) for width, number in zip(widths, heads)]
        return GraphClassifier(layers, 4)
    widths = [1, *(GCN_WIDTHS if method == "GCN" else SGC_WIDTHS)[num_layers]]
    pairs = list(itertools.pairwise(widths))
    if method == "GCN":
        return GraphClassifier([GCNConv(*pair) for pair in pairs], widths[-1])
    return GraphClassifier([ChebConv(*pair, K=k) for pair, k in zip(pairs, SGC_FILTERS[num_layers])], widths[-1])


class Task(NamedTuple):
    """One column of the paper's Table 4.

    Args:
        name: Name in tables and of files.
        load: Function from a folder and a number to that many graphs.
        max_length: Longest walk in hops.
        gkat: Method -> function that builds GKAT or, with the exact kernel, GKAT-0.
        baseline: Function from the name of another method and a number of layers to a model.
        published: Accuracy in percent by method, with two layers.
        optim: Settings of `train_graphs` that differ from its defaults.
    """

    name: str
    load: Callable[[str, int], Sequence[Data]]
    max_length: int
    gkat: Mapping[str, Callable[[], Module]]
    baseline: Callable[[str, int], Module]
    published: Mapping[str, float]
    optim: Mapping[str, float] = {}


def _motif(name: str, *accuracies: float) -> Task:
    def load(root: str, num_graphs: int) -> Sequence[Data]:
        return MotifDataset(f"{root}/motif", name, num_graphs=num_graphs)

    models = {"GKAT": motif_gkat, "GKAT-0": lambda: motif_gkat("softmax")}
    return Task(name, load, MOTIF_LENGTH, models, motif_baseline, dict(zip(METHODS, accuracies)))


def _cycles(root: str, num_graphs: int) -> Sequence[Data]:
    return InducedCycleDataset(f"{root}/cycle", num_graphs=num_graphs)


CYCLE = Task(
    "induced_cycle",
    _cycles,
    CYCLE_LENGTH,
    {"GKAT": cycle_gkat},
    cycle_baseline,
    dict(zip(METHODS, (83.6, 77.0, 63.2, 56.6))),
    {"lr": 5e-3, "weight_decay": 1e-5},  # as in the authors' code; the paper states those of the motifs
)
TASKS = [
    _motif("caveman", 85.1, 69.1, 62.1, 55.4),
    _motif("circle", 83.3, 80.6, 71.4, 64.7),
    _motif("grid", 77.1, 73.8, 59.3, 58.2),
    _motif("ladder", 82.4, 75.9, 66.7, 59.1),
    _motif("circular_ladder", 94.6, 93.7, 87.4, 66.5),
    CYCLE,
]


def train_graphs(
    model: Module,
    train: Sequence[Data],
    val: Sequence[Data],
    test: Sequence[Data],
    epochs: int | None,
    patience: int = PATIENCE,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    max_seconds: float | None = None,
) -> dict[str, Any]:
    """Train with Adam on training graphs; see `train_until_flat`. Collation is part of the training."""
    loader = DataLoader(train, BATCH_SIZE, shuffle=True)
    checks = {"val": list(DataLoader(val, 4 * BATCH_SIZE)), "test": list(DataLoader(test, 4 * BATCH_SIZE))}
    warm = copy.deepcopy(model)  # a first call, so that the set-up of the process is not timed
    cross_entropy(warm(checks["val"][0]), checks["val"][0].y).backward()
    optimizer = Adam(model.parameters(), lr=lr, weight_decay=weight_decay)

    def one_epoch(_: int) -> None:
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), batch.y).backward()
            optimizer.step()

    evaluate = lambda part: evaluate_graphs(model, checks[part])  # noqa: E731
    return train_until_flat(one_epoch, evaluate, epochs, patience, max_seconds)


def evaluate_graphs(model: Module, batches: Sequence[Batch]) -> tuple[float, float]:
    """Mean loss and accuracy over graphs."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    with no_grad():
        for batch in batches:
            out = model(batch)
            loss += float(cross_entropy(out, batch.y, reduction="sum"))
            right += int((out.argmax(1) == batch.y).sum())
            count += batch.num_graphs
    return loss / count, right / count


def compare(task: Task, options: argparse.Namespace, depths: Sequence[int] = (2,)) -> Iterator[dict[str, Any]]:
    """Rows of one task, beginning with GKAT; the other methods get the seconds that GKAT took with the same seed.

    The first three quarters of the graphs are for training, the next eighth for validation, and the last for the test;
    all are drawn independently. GKAT-0 gets GKAT's number of epochs instead of its time.
    """
    data = list(task.load(options.root, options.graphs))
    begin = time.process_time()
    walk = AddRandomWalks(NUM_WALKS, task.max_length, 0.0, independent=False, seed=0)
    walked, cuts = [walk(graph) for graph in data], (options.graphs * 3 // 4, options.graphs * 7 // 8)
    walk_seconds = time.process_time() - begin
    folder: Path = options.out / f"tested-{options.graphs}x{options.epochs}"
    time_of_gkat: dict[int, float] = {}
    others = [method for method in options.methods if method != "GKAT" and (method != "GKAT-0" or method in task.gkat)]
    for method in ["GKAT", *others]:
        ours = method in task.gkat
        for depth in (2,) if ours else depths:
            model = task.gkat[method]() if ours else task.baseline(method, depth)
            graphs, runs = walked if ours else data, []
            for seed in range(options.seeds):
                limit = {"epochs": options.epochs} if ours else {"epochs": None, "max_seconds": time_of_gkat[seed]}
                file = folder / f"{task.name}-{method}-{depth}-{seed}.json"
                parts = (graphs[: cuts[0]], graphs[slice(*cuts)], graphs[cuts[1] :])
                runs.append(remembered(file, fresh_copy(model, seed), train_graphs, *parts, **limit, **task.optim))
                if method == "GKAT":
                    time_of_gkat[seed] = runs[-1]["seconds"]
            label = method if depth == 2 else f"{method}, {depth} layers"
            row = row_of(task.name.replace("_", " "), label, task.published.get(method) if depth == 2 else None, runs)
            early = [100 * run["curve"][: options.epochs][-1][2] for run in runs]
            yield row | {"depth": depth, "walk_seconds": walk_seconds, "of_equal_epochs": early}


def described(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> str:
    """How the table was made."""
    walks = max(row["walk_seconds"] for row in rows)
    return (
        f"{options.graphs:,} graphs, three quarters of them for training, an eighth for validation, and an eighth for "
        "the test, at which no choice looks. Test accuracy after the epoch of the best validation accuracy within the "
        f"time of {options.epochs} epochs of GKAT with the same seed, or until neither validation loss nor accuracy "
        f"has improved for {PATIENCE} epochs; the next column has the same for the first {options.epochs} epochs. "
        f"{SPREAD} Seconds are processor time of one thread, of training alone. GKAT's {NUM_WALKS} walks of each node "
        f"are drawn once before training ({walks:.1f} s or less for each task, not counted). All methods have about as "
        "many parameters as GKAT."
    )


def synthetic_parser(doc: str, name: str) -> argparse.ArgumentParser:
    """A parser with the options of both scripts, which share their runs; ``doc`` is the script's docstring."""
    made = parser(doc, "gkat_synthetic", seeds=3)
    made.set_defaults(name=name)
    made.add_argument("--methods", nargs="+", choices=[*METHODS, "GKAT-0"], default=list(METHODS), help="rows")
    made.add_argument("--epochs", type=positive, default=100, help="epochs of GKAT, whose time the others get")
    made.add_argument("--graphs", type=positive, default=4096, help="graphs of each task")
    made.add_argument("--root", default="results/data", help="folder of the generated graphs")
    return made


def quickened(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line, with small sizes if ``--quick`` is given."""
    options = read_options(made)
    set_num_threads(1)
    if options.quick:
        options.graphs, options.epochs, options.seeds = 256, 2, 1
    if options.graphs < 8:
        made.error(f"--graphs {options.graphs} leaves no graphs for validation and test; 8 is the least")
    return options
