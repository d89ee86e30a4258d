"""Common parts of the scripts that repeat the tables of GKAT: models, training, resuming, reports."""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import cross_entropy, elu
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import ChebConv, GATConv, GCNConv, global_mean_pool

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from _measure import machine, save_json
from _tables import COLORS, write_section

from pyg_topomask.nn import GKATAttention, GKATConv

METHODS = ("GKAT", "GAT", "GCN", "SGC")


class GraphClassifier(Module):
    """Graph layers with ELU between them, mean pooling, a linear layer.

    Args:
        layers: Layers, each called with the graph, or with its edges.
        width: Width of the last layer's output.
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


def num_parameters(model: Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def of_equal_budget(build: Callable[[int], Module], budget: int) -> Module:
    """The model whose width makes its number of parameters come nearest to a budget."""
    return build(min(range(1, 129), key=lambda width: abs(num_parameters(build(width)) - budget)))


def motif_gkat(in_channels: int, max_length: int, num_features: int = 16, kernel: str = "softmax_rf") -> Module:
    """Two layers of two heads of width 9."""
    layers = [
        GKATAttention(18, 2, num_features, kernel, max_length=max_length),
        GKATAttention(18, 2, num_features, kernel, max_length=max_length),
    ]
    return GraphClassifier([Linear(in_channels, 18), *layers], 18)


def cycle_gkat(in_channels: int, max_length: int) -> Module:
    """Heads [8, 1] of width 4 in the shape of GAT: the paper's 242 parameters where ``in_channels`` is 1."""
    first = GKATConv(in_channels, 4, 8, elu=False, bias=False, max_length=max_length)
    second = GKATConv(32, 4, 1, elu=False, bias=False, max_length=max_length)
    return GraphClassifier([first, second], 4)


def baseline(method: str, in_channels: int, budget: int, num_layers: int = 2) -> Module:
    """GAT, GCN or SGC (Chebyshev filters) of PyG with about ``budget`` parameters."""

    def build(width: int) -> Module:
        widths = [in_channels, *[width] * num_layers]
        if method == "GAT":
            heads = [2] * num_layers
            widths = [in_channels, *[2 * width] * num_layers]
            layers = [GATConv(widths[i], width, heads[i]) for i in range(num_layers)]
            return GraphClassifier(layers, 2 * width)
        if method == "GCN":
            return GraphClassifier([GCNConv(widths[i], width) for i in range(num_layers)], width)
        return GraphClassifier([ChebConv(widths[i], width, K=2) for i in range(num_layers)], width)

    return of_equal_budget(build, budget)


def train_graphs(
    model: Module,
    train: Sequence[Data],
    val: Sequence[Data],
    epochs: int,
    patience: int,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    max_seconds: float | None = None,
) -> dict[str, Any]:
    """Train with Adam until neither validation loss nor accuracy has improved for ``patience`` epochs.

    Returns:
        Best validation accuracy, epochs, seconds, and the curve (seconds of training, validation accuracy).
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    loader, checks = DataLoader(train, batch_size, shuffle=True), list(DataLoader(val, 4 * batch_size))
    best_loss, best_accuracy, since, seconds, curve = float("inf"), 0.0, 0, 0.0, []
    for _ in range(epochs):
        begin = time.perf_counter()
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), batch.y).backward()
            optimizer.step()
        seconds += time.perf_counter() - begin
        loss, accuracy = evaluate_graphs(model, checks)
        curve.append((seconds, accuracy))
        since = 0 if loss < best_loss or accuracy > best_accuracy else since + 1
        best_loss, best_accuracy = min(best_loss, loss), max(best_accuracy, accuracy)
        if since >= patience or (max_seconds is not None and seconds >= max_seconds):
            break
    return {"accuracy": best_accuracy, "epochs": len(curve), "seconds": seconds, "curve": curve}


def evaluate_graphs(model: Module, batches: Sequence[Batch]) -> tuple[float, float]:
    """Mean loss and accuracy over graphs."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in batches:
            out = model(batch)
            loss += float(cross_entropy(out, batch.y, reduction="sum"))
            right += int((out.argmax(1) == batch.y).sum())
            count += batch.num_graphs
    return loss / count, right / count


def train_nodes(
    model: Module,
    data: Data,
    epochs: int,
    patience: int,
    redraw: Callable[[Data, int], Data] | None = None,
    lr: float = 5e-3,
    weight_decay: float = 5e-4,
) -> dict[str, Any]:
    """Train on one graph as GAT is, test at the epoch of the best validation accuracy (of equal ones, least loss)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    best, best_loss, test, since, seconds, curve = 0.0, float("inf"), 0.0, 0, 0.0, []
    for epoch in range(epochs):
        begin = time.perf_counter()
        if redraw is not None and epoch > 0:
            data = redraw(data, epoch)
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(data)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        seconds += time.perf_counter() - begin
        model.eval()
        with torch.no_grad():
            out = model(data)
        loss = float(cross_entropy(out[data.val_mask], data.y[data.val_mask]))
        right = out.argmax(1) == data.y
        accuracy = float(right[data.val_mask].float().mean())
        curve.append((seconds, accuracy))
        since = 0 if accuracy > best or loss < best_loss else since + 1
        if (accuracy, -loss) > (best, -best_loss):
            test = float(right[data.test_mask].float().mean())
        best, best_loss = max(best, accuracy), min(best_loss, loss)
        if since >= patience:
            break
    return {"accuracy": test, "validation": best, "epochs": len(curve), "seconds": seconds, "curve": curve}


def remembered(path: Path, model: Module, train: Callable[..., dict[str, Any]], *args: Any, **settings: Any) -> Any:
    """Result of ``train(model, *args, **settings)``, read from its file if an earlier start has finished it."""
    if not path.is_file():
        save_json(path, train(model, *args, **settings) | {"parameters": num_parameters(model)})
    return json.loads(path.read_text())


def parser(description: str, out: str, seeds: int) -> argparse.ArgumentParser:
    """The options that these scripts share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="few graphs, epochs and seeds: shows that everything runs")
    made.add_argument("--seeds", type=int, default=seeds, help="runs of each row")
    made.add_argument("--out", type=Path, default=Path(f"results/reproduce/{out}"), help="runs, report and plot")
    made.add_argument("--results", type=Path, help="Markdown file to write the table into, between markers")
    return made


def row_of(title: str, method: str, published: float | str | None, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of a table from the runs of all seeds."""
    values = [100 * run["accuracy"] for run in runs]
    return {
        "title": title,
        "method": method,
        "published": published,
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
        "epochs": [run["epochs"] for run in runs],
        "seconds": [run["seconds"] for run in runs],
        "parameters": runs[0]["parameters"],
        "curve": runs[0]["curve"],
    }


def write_report(name: str, rows: Sequence[Mapping[str, Any]], note: str, options: argparse.Namespace) -> None:
    """Write JSON, Markdown and a plot; called after each row, so that a stopped script leaves what it has."""
    where = machine()
    lines = [f"{where['cpu']}, {where['threads']} threads, torch {where['torch']}. {note}"]
    if options.quick:
        lines.append("A trial on few graphs and epochs: these figures only show that everything runs.")
    lines += ["", "| data | method | parameters | seeds | epochs | s/epoch | accuracy (%) | published (%) |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        spread = "" if row["std"] is None else f" ± {row['std']:.1f}"
        per_epoch = sum(row["seconds"]) / sum(row["epochs"])
        cells = (row["title"], row["method"], f"{row['parameters']:,}", len(row["values"]), max(row["epochs"]))
        cells += (f"{per_epoch:.2f}", f"{row['mean']:.1f}{spread}", row["published"] or "–")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    save_json(options.out / f"{name}.json", {"machine": where, "quick": options.quick, "rows": list(rows)})
    (options.out / f"{name}.md").write_text(text)
    if options.results is not None:
        write_section(options.results, name, text)
    _plot(rows, options.out / f"{name}.png")


def _plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = list(dict.fromkeys(row["title"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, axes = plt.subplots(1, len(titles), figsize=(4.2 * len(titles), 3.6), layout="constrained", squeeze=False)
    for row in rows:
        axis, color = axes[0, titles.index(row["title"])], COLORS[methods.index(row["method"]) % len(COLORS)]
        seconds, values = zip(*row["curve"])
        axis.plot(seconds, [100 * value for value in values], color=color, lw=1.2, label=row["method"])
        axis.set(title=row["title"], xlabel="seconds of training", ylabel="validation accuracy (%)")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def fresh_copy(model: Module, seed: int) -> Module:
    """A copy of a model with weights drawn from a seed."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model
