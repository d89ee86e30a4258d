"""Common parts of the scripts that repeat the tables of GKAT: options, training on one graph, resuming, reports."""

import argparse
import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _bench import described, draw_lines, machine, markdown, read_json, save_json
from _fitting import mean_and_spread
from _tables import positive, store, table_parser
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

PATIENCE, LR, WEIGHT_DECAY = 100, 5e-3, 5e-4
"""GAT's settings on Cora and CiteSeer; the paper trains GKAT with GAT's parameters (Appendix A.5.2)."""


def num_parameters(model: Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


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
    return {"accuracy": chosen, "validation": best[0], "epochs": len(curve), "seconds": seconds, "curve": curve}


def train_nodes(model: Module, data: Data, redraw: Callable[[Data, int], Data] | None, epochs: int) -> dict[str, Any]:
    """Train on one graph as GAT does; see `train_until_flat`. New walks from ``redraw`` are part of the training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    def train(epoch: int) -> None:
        nonlocal data
        if redraw is not None and epoch > 0:
            data = redraw(data, epoch)
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(data)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()

    def evaluate(part: str) -> tuple[float, float]:
        with torch.no_grad():
            out, y = model.eval()(data)[data[f"{part}_mask"]], data.y[data[f"{part}_mask"]]
        return float(cross_entropy(out, y)), float((out.argmax(1) == y).float().mean())

    return train_until_flat(train, evaluate, epochs, PATIENCE)


def remembered(path: Path, model: Module, train: Callable[..., dict[str, Any]], *args: Any, **settings: Any) -> Any:
    """Result of ``train(model, *args, **settings)``, read from its file if an earlier run had the same settings.

    The earlier run must have been on the same machine, because its seconds are compared with those of other runs.
    """
    kept, wanted = read_json(path), settings | {"machine": machine()}
    if kept.get("settings") != wanted:
        made = train(model, *args, **settings)
        save_json(path, made | {"parameters": num_parameters(model), "settings": wanted})
        kept = read_json(path)
    return kept


def parser(doc: str, name: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """A parser with the options of every GKAT script; ``doc`` is the script's docstring."""
    made = table_parser(doc, name, "a trial of minutes", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    if seeds is not None:
        made.add_argument("--seeds", type=positive, default=seeds, help="runs of each row")
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


def with_earlier(path: Path, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """These rows, and further rows of an earlier report with the same settings and machine."""
    report, made = read_json(path), {(row["title"], row["method"]): row for row in rows}
    same = report.get("settings") == settings and report.get("machine") == machine()
    kept = {(row["title"], row["method"]): row for row in report["rows"]} if same else {}
    titles = list(dict.fromkeys(title for title, _ in kept | made))
    return sorted((kept | made).values(), key=lambda row: titles.index(row["title"]))


def write_report(
    rows: Sequence[Mapping[str, Any]],
    note: str,
    options: argparse.Namespace,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report, stored. It is called after each row, so that an interrupted script keeps its rows."""
    report = {"machine": machine(), "quick": options.quick, "note": note, "settings": settings, "rows": list(rows)}
    store(report, lines, options)
    return report


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield f"{described(report['machine'])}. {report['note']}"
    if report["quick"]:
        yield "A trial of few epochs: these figures only show that everything runs."
    titles = ["data", "method", "parameters", "runs", "epochs", "s/epoch", "s/run", "accuracy (%)", "published (%)"]
    if "of_equal_epochs" in report["rows"][0]:
        titles.insert(8, "in GKAT's epochs (%)")
    yield ""
    yield from markdown(" | ".join([*titles[:2], *(f"{title}:" for title in titles[2:])]), map(_cells, report["rows"]))


def _cells(row: Mapping[str, Any]) -> list[Any]:
    total, known = sum(row["seconds"]), [row["title"], row["method"], f"{row['parameters']:,}", len(row["values"])]
    times = f"{statistics.fmean(row['epochs']):.0f}", f"{total / sum(row['epochs']):.2f}"
    figures = [mean_and_spread(row[key], 1) for key in ("values", "of_equal_epochs") if key in row]
    return [*known, *times, f"{total / len(row['seconds']):.1f}", *figures, row["published"] or "–"]


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Validation accuracy (%) of each row's first run over the seconds of training, with a panel for each data set."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in report["rows"]:
        panels.setdefault(row["title"], {})[row["method"]] = [(point[0], 100 * point[1]) for point in row["curve"]]
    draw_lines(panels, path, "seconds of training", "validation accuracy (%)", columns=3)


def fresh_copy(model: Module, seed: int) -> Module:
    """A copy of a model with new weights that a seed determines."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model
