"""Common parts of the scripts that repeat the tables of GKAT: models and graphs of motifs and cycles, and training.

Motifs and induced cycles are those of Sections 5.1 and 5.3; other methods are trained in the time of GKAT.
"""

import copy
import itertools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _bench import read_json
from _fitting import begin, mean_and_spread, num_parameters, order
from _folds import Comparison
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import cross_entropy, elu
from torch.optim import Adam
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import ChebConv, GATConv, GCNConv, global_mean_pool

from pyg_topomask import datasets, nn, transforms
from pyg_topomask.run import RunError

METHODS = ("GKAT", "GAT", "GCN", "SGC")
GRAPHS, QUICK_GRAPHS, ROOT = 4096, 256, "results/data"
NUM_WALKS, BATCH_SIZE, PATIENCE = 50, 128, 80
MOTIF_FEATURES, MOTIF_LENGTH, CYCLE_LENGTH = 5, 3, 6
GAT_HEADS = {2: (8, 1), 3: (4, 2, 1), 4: (4, 2, 1, 1), 5: (2, 2, 2, 1, 1), 6: (3, 2, 1, 1, 1, 1)}
GCN_WIDTHS = {2: (14, 14), 3: (10, 10, 10), 4: (8, 8, 8, 8), 5: (10, 8, 6, 6, 6), 6: (10, 6, 6, 6, 6, 6)}
SGC_WIDTHS = {2: (10, 8), 3: (8, 6, 6), 4: (8, 5, 4, 4), 5: (6, 5, 4, 4, 4), 6: (6, 4, 4, 4, 4, 3)}
SGC_FILTERS = {2: (4, 2), 3: (4, 2, 2), 4: (8, 2, 2, 2), 5: (8, 2, 2, 2, 2), 6: (8, 2, 2, 2, 2, 2)}
"""By the number of layers: each layer's heads of width 4, widths, and Chebyshev filters, from the paper's Table 5."""


def train_until_flat(
    train: Callable[[int], None],
    evaluate: Callable[[str], tuple[float, float]],
    epochs: int | None,
    patience: int,
    max_seconds: float | None = None,
) -> dict[str, Any]:
    """Train until neither validation loss nor accuracy has improved for ``patience`` epochs.

    Args:
        train: Trains for an epoch, given its number.
        evaluate: Loss and accuracy on ``"val"`` or ``"test"``.
        epochs: Largest number of epochs; no limit if :obj:`None`.
        patience: Number of epochs without improvement after which training stops.
        max_seconds: Processor seconds of training. An epoch that ends later does not count, unless it is the first.

    Returns:
        Test accuracy at the epoch of the best validation accuracy (then the least loss), that validation accuracy,
        number of epochs, seconds, and the curve: seconds of training, validation accuracy, and the test accuracy at the
        best epoch until then. Seconds are processor time of training without evaluation.
    """
    best_loss, best_accuracy, best, chosen, since, seconds = float("inf"), 0.0, (-1.0, 0.0), 0.0, 0, 0.0
    curve: list[tuple[float, float, float]] = []
    for epoch in itertools.count() if epochs is None else range(epochs):
        begin = time.process_time()
        train(epoch)
        after = seconds + time.process_time() - begin
        if max_seconds is not None and after > max_seconds and curve:
            break
        seconds = after
        loss, accuracy = evaluate("val")
        if (accuracy, -loss) > best:
            best, chosen = (accuracy, -loss), evaluate("test")[1]
        curve.append((seconds, accuracy, chosen))
        since = 0 if loss < best_loss or accuracy > best_accuracy else since + 1
        best_loss, best_accuracy = min(best_loss, loss), max(best_accuracy, accuracy)
        if since >= patience:
            break
    return {"val": best[0], "test": chosen, "trained": len(curve), "seconds": seconds, "curve": curve}


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
    layers = [nn.GKATAttention(18, 2, 16, kernel, max_length=MOTIF_LENGTH) for _ in range(2)]
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


def cycle_gkat(max_length: int = CYCLE_LENGTH) -> Module:
    """Two layers of 8 and 1 heads of width 4 in the form of GAT, with 242 parameters as in the paper."""
    first = nn.GKATConv(1, 4, 8, elu=False, bias=False, max_length=max_length)
    second = nn.GKATConv(32, 4, 1, elu=False, bias=False, max_length=max_length)
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
        name: Name in tables.
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
        return datasets.MotifDataset(f"{root}/motif", name.replace(" ", "_"), num_graphs=num_graphs)

    models = {"GKAT": motif_gkat, "GKAT-0": lambda: motif_gkat("softmax")}
    return Task(name, load, MOTIF_LENGTH, models, motif_baseline, dict(zip(METHODS, accuracies)))


def _cycles(root: str, num_graphs: int) -> Sequence[Data]:
    return datasets.InducedCycleDataset(f"{root}/cycle", num_graphs=num_graphs)


CYCLE = Task(
    "induced cycle",
    _cycles,
    CYCLE_LENGTH,
    {"GKAT": cycle_gkat},
    cycle_baseline,
    dict(zip(METHODS, (83.6, 77.0, 63.2, 56.6))),
    {"lr": 5e-3, "weight_decay": 1e-5},  # as in the authors' code; the paper states those of the motifs
)
MOTIFS = [
    _motif("caveman", 85.1, 69.1, 62.1, 55.4),
    _motif("circle", 83.3, 80.6, 71.4, 64.7),
    _motif("grid", 77.1, 73.8, 59.3, 58.2),
    _motif("ladder", 82.4, 75.9, 66.7, 59.1),
    _motif("circular ladder", 94.6, 93.7, 87.4, 66.5),
]
LENGTHS = [
    CYCLE._replace(
        name=f"{hops} hop{'s' * (hops > 1)}", max_length=hops, gkat={"GKAT": partial(cycle_gkat, hops)}, published={}
    )
    for hops in (1, 2, 3, 4, 6, 8, 10)
]
TASKS = {task.name: task for task in (*MOTIFS, CYCLE, *LENGTHS)}


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
    loader = DataLoader(train, BATCH_SIZE, shuffle=True, generator=order())
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
    with torch.no_grad():
        out, y = torch.cat([model(batch) for batch in batches]), torch.cat([batch.y for batch in batches])
    return loss_and_accuracy(out, y)


def loss_and_accuracy(out: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean cross entropy and accuracy of logits."""
    return float(cross_entropy(out, y)), float((out.argmax(1) == y).double().mean())


@cache
def graphs_of(name: str, count: int, walked: bool) -> list[list[Data]]:
    """Graphs of a task, all drawn independently: three quarters for training, an eighth for validation and the test."""
    graphs = list(TASKS[name].load(ROOT, count))
    walk = transforms.AddRandomWalks(NUM_WALKS, TASKS[name].max_length, 0.0, independent=False, seed=0)
    graphs = [walk(graph) for graph in graphs] if walked else graphs
    return [graphs[: count * 3 // 4], graphs[count * 3 // 4 : count * 7 // 8], graphs[count * 7 // 8 :]]


def comparison(doc: str | None, name: str, tasks: Iterable[str], methods: Iterable[str]) -> Comparison:
    """Rows of tasks: GKAT for a number of epochs, and others for the seconds that it took with the same seed.

    A method may have a number of layers after a comma. GKAT-0 gets GKAT's number of epochs instead of its time.
    """

    def run(row: Mapping[str, Any], seed: int, epochs: int, out: Path) -> dict[str, Any]:
        begin(seed)
        task, (method, _, layers) = TASKS[row["dataset"]], row["method"].partition(", ")
        ours = method in task.gkat
        model = task.gkat[method]() if ours else task.baseline(method, int(layers[:1] or 2))
        parts = graphs_of(task.name, QUICK_GRAPHS if out.name == "quick" else GRAPHS, ours)
        limit: dict[str, Any] = {"epochs": epochs}
        if not ours:
            gkat = read_json(out / f"{name}.json").get("rows", {}).get(f"{task.name}: GKAT", {"seconds": []})
            if len(gkat["seconds"]) <= seed:
                raise RunError("the other methods get the time of GKAT; add it to --methods")
            limit = {"epochs": None, "max_seconds": gkat["seconds"][seed]}
        found = train_graphs(model, *parts, **limit, **task.optim)
        curve = found.pop("curve")
        found |= {"early": curve[:epochs][-1][2], "parameters": num_parameters(model)}
        return found | ({} if seed else {"curves": [point[:2] for point in curve]})

    return Comparison(
        doc,
        name,
        dict.fromkeys(tasks, 100),
        methods,
        run,
        f"{GRAPHS:,} graphs, three quarters of them for training, an eighth for validation, and an eighth for the "
        "test, at which no choice looks. Test accuracy (%) after the epoch of the best validation accuracy within the "
        "time of GKAT's epochs with the same seed, or until neither validation loss nor accuracy has improved for "
        f'{PATIENCE} epochs; the column "in GKAT\'s epochs" has the same for as many epochs. Seconds are processor '
        f"time of one thread, of training alone. GKAT's {NUM_WALKS} walks of each node are drawn once before.",
        {"dataset": "data", "method": "method"},
        {
            "in GKAT's epochs": lambda row, rows: mean_and_spread(row["early"], 1, 100),
            "published": lambda row, rows: TASKS[row["dataset"]].published.get(row["method"], "–"),
        },
        form=(100, 1),
        absent=lambda dataset, method: method == "GKAT-0" and method not in TASKS[dataset].gkat,
        optional=["GKAT-0"],
    )
