"""Common parts of the scripts that repeat the tables of GKAT: options, training on one graph, resuming, reports."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _bench import described, machine, pyplot, read_json, save_json, save_plot
from _tables import positive, table_parser, write_table
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from pyg_topomask.viz.drawing import PALETTE

PATIENCE, LR, WEIGHT_DECAY = 100, 5e-3, 5e-4
"""GAT's settings on Cora and CiteSeer; the paper trains GKAT with GAT's parameters (Appendix A.5.2)."""


def num_parameters(model: Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def train_nodes(model: Module, data: Data, redraw: Callable[[Data, int], Data] | None, epochs: int) -> dict[str, Any]:
    """Train on one graph as GAT does, and test at the epoch of the best validation accuracy (then the least loss).

    Seconds are processor time of training, including new walks from ``redraw``.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    best, best_loss, test, since, seconds, curve = 0.0, float("inf"), 0.0, 0, 0.0, []
    for epoch in range(epochs):
        begin = time.process_time()
        if redraw is not None and epoch > 0:
            data = redraw(data, epoch)
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(data)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        seconds += time.process_time() - begin
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
        if since >= PATIENCE:
            break
    return {"accuracy": test, "validation": best, "epochs": len(curve), "seconds": seconds, "curve": curve}


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


def spread(values: Sequence[float]) -> str:
    """Mean of the runs, and their standard deviation if there are several."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def with_earlier(path: Path, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """These rows, and further rows of an earlier report with the same settings and machine."""
    report, made = read_json(path), {(row["title"], row["method"]): row for row in rows}
    same = report.get("settings") == settings and report.get("machine") == machine()
    kept = {(row["title"], row["method"]): row for row in report["rows"]} if same else {}
    titles = list(dict.fromkeys(title for title, _ in kept | made))
    return sorted((kept | made).values(), key=lambda row: titles.index(row["title"]))


def write_report(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    note: str,
    options: argparse.Namespace,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write JSON and Markdown. It is called after each row, so that an interrupted script keeps its rows."""
    report = {"machine": machine(), "quick": options.quick, "note": note, "settings": settings, "rows": list(rows)}
    save_json(options.out / f"{name}.json", report)
    write_table(options, name, "\n".join(lines(report)) + "\n")


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield f"{described(report['machine'])}. {report['note']}"
    if report["quick"]:
        yield "A trial of few epochs: these figures only show that everything runs."
    titles = ["data", "method", "parameters", "runs", "epochs", "s/epoch", "s/run", "accuracy (%)", "published (%)"]
    if "of_equal_epochs" in report["rows"][0]:
        titles.insert(8, "in GKAT's epochs (%)")
    yield ""
    yield "| " + " | ".join(titles) + " |"
    yield "|---|---|" + "--:|" * (len(titles) - 2)
    for row in report["rows"]:
        total = sum(row["seconds"])
        cells = [row["title"], row["method"], f"{row['parameters']:,}", len(row["values"])]
        cells += [f"{statistics.fmean(row['epochs']):.0f}", f"{total / sum(row['epochs']):.2f}"]
        cells += [f"{total / len(row['seconds']):.1f}", spread(row["values"])]
        cells += [spread(row["of_equal_epochs"])] if "of_equal_epochs" in row else []
        cells += [row["published"] or "–"]
        yield "| " + " | ".join(map(str, cells)) + " |"


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Validation accuracy of each row's first run over the seconds of training, with a panel for each data set."""
    titles = list(dict.fromkeys(row["title"] for row in report["rows"]))
    methods = list(dict.fromkeys(row["method"] for row in report["rows"]))
    height, width = -(-len(titles) // 3), min(3, len(titles))
    size = (4.2 * width, 3.6 * height)
    figure, axes = pyplot().subplots(height, width, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    for row in report["rows"]:
        axis, color = axes.flat[titles.index(row["title"])], PALETTE[methods.index(row["method"]) % len(PALETTE)]
        seconds, values = zip(*(point[:2] for point in row["curve"]))
        axis.plot(seconds, [100 * value for value in values], color=color, lw=1.2, label=row["method"])
        axis.set(title=row["title"], xlabel="seconds of training", ylabel="validation accuracy of the first run (%)")
        axis.legend(fontsize=8)
    save_plot(figure, path)


def finish(name: str, options: argparse.Namespace, draw: Callable[[Mapping[str, Any], Path], None] = plot) -> None:
    """Print the table and write its picture."""
    print((options.out / f"{name}.md").read_text())
    draw(read_json(options.out / f"{name}.json"), options.out / f"{name}.png")


def fresh_copy(model: Module, seed: int) -> Module:
    """A copy of a model with new weights that a seed determines."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model
