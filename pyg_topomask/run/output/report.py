"""Reports of a run: its table of metrics, curves, and the summary over seeds."""

import csv
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.containers import Lines
from rich.table import Table
from rich.text import Text

from pyg_topomask import __version__
from pyg_topomask.run.files import write_text
from pyg_topomask.run.task import PARTS
from pyg_topomask.viz import literal, plot_curves, save_figure

PERCENT = ("accuracy", "accuracy-SBM")
"""Metrics that are printed in percent."""

DEVIATION = "standard deviation (n − 1)"
"""What follows ``±`` in the tables."""


def format_metric(name: str, value: float, std: float | None = None, sign: str = "") -> str:
    """A metric's value as text, such as ``78.10 ± 0.42``; in percent for accuracies, with any sign if that is ``+``."""
    scale, digits = (100, 2) if name.partition("/")[0] in PERCENT else (1, 4)
    return f"{scale * value:{sign}.{digits}f}" + (f" ± {scale * std:.{digits}f}" if std is not None else "")


def layers_text(layer_type: str, mask: str | None) -> str:
    """Layers and mask for messages, such as ``GCN+Masked with topomask.mask heat``."""
    return f"{layer_type} with topomask.mask {mask}" if mask else layer_type


def headline(metrics: Mapping[str, Any], metric_best: str) -> str:
    """The metric to show: ``metric_best``, or the task's first other metric if that is the loss."""
    if metric_best != "loss":
        return metric_best
    names = (key.partition("_")[2] for key in metrics if key.startswith("val_"))
    return next((name for name in names if name != "loss"), "loss")


def write_metrics(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a CSV file with a line for each evaluated epoch."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: int(row[name]) if name == "epoch" else f"{row[name]:.8g}" for name in names})
    write_text(path, text.getvalue())


def write_curves(
    path: Path, rows: Sequence[Mapping[str, float]], best_epoch: int, title: str, metric: str = "accuracy"
) -> None:
    """Plot the loss and the metric by epoch, for training and validation, and mark the best epoch."""
    names = list(dict.fromkeys(["loss", metric]))
    curves = {
        text: {"epoch": [row["epoch"] for row in rows]}
        | {name: [row.get(f"{part}_{name}", math.nan) for row in rows] for name in names}  # training has no ranks
        for text, part in (("training", "train"), ("validation", "val"))
    }
    figure = plot_curves(curves, names)
    for axes in figure.axes:
        axes.axvline(best_epoch, color="#d62728", lw=0.8, ls=":", label=f"best epoch ({best_epoch})")
        axes.legend(frameon=False)
    figure.suptitle(literal(title), fontsize=11)
    save_figure(figure, path)


def rounded(value: float) -> float:
    """The number rounded to 8 digits, the precision of float32."""
    return float(f"{value:.8g}")


def summarize(
    name: str, results: Sequence[Mapping[str, Any]], metric: str = "accuracy", layer_type: str = "", mask: Any = None
) -> dict[str, Any]:
    """Mean and standard deviation (of the sample; 0 for one seed) over seeds of every metric at the best epoch.

    The metric that chose the epoch and the loss come first, then the task's other metrics.
    """
    metrics = {}
    names = sorted(results[0]["metrics"], key=lambda key: key.partition("_")[2] not in (metric, "loss"))
    for key in (key for key in names if all(key in result["metrics"] for result in results)):
        values = [result["metrics"][key] for result in results]
        spread = {"mean": rounded(statistics.fmean(values)), "std": rounded(_deviation(values))}
        metrics[key] = spread | {"values": [rounded(value) for value in values]}
    peaks = {
        key: max((result[key] for result in results if result[key] is not None), default=None)
        for key in ("peak_memory_mib", "peak_cuda_mib")
    }
    return {
        "name": name,
        "layer_type": layer_type,
        "mask": mask,
        "version": __version__,
        "metric_best": metric,
        "seeds": [result["seed"] for result in results],
        "splits": [result.get("split_index") for result in results],
        "metrics": metrics,
        "best_epochs": [result["best_epoch"] for result in results],
        "epochs": [result["epochs"] for result in results],
        "num_parameters": results[0]["num_parameters"],
        "wall_time_s": {
            "total": round(sum(result["wall_time_s"] for result in results), 3),
            "values": [result["wall_time_s"] for result in results],
        },
        **peaks,
    }


def _deviation(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):  # such as of a set without positives
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


def between_lines(title: str, table: Table | Group, caption: str) -> Group:
    """A table with text above and below. Rich would wrap a title of the table itself at the table's width."""
    return Group(Text(title, style="italic"), table, Text(caption, style="dim italic"))


class _Name(Text):
    """A name, which breaks after - _ and / where its column is too narrow."""

    def wrap(self, console: Console, width: int, **more: Any) -> Lines:
        lines = [""]
        for part in re.findall(r"[^-_/]*[-_/]|[^-_/]+", self.plain):
            lines += [part] if lines[-1] and len(lines[-1] + part) > width else [lines.pop() + part]
        return Text("\n".join(lines)).wrap(console, width, **more)


def titled_table(title: str, columns: Mapping[str, Sequence[str]], caption: str) -> Group:
    """A table for a terminal from the cells of each column; the first column is aligned left, all others right."""
    table = Table()
    for number, name in enumerate(columns):
        heading = name.replace(" (", "\n(")  # narrow, so that the first column has room
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for first, *rest in zip(*columns.values()):
        table.add_row(_Name(first), *map(Text, rest))  # brackets in names are no markup
    return between_lines(title, table, caption)


def summary_table(summary: Mapping[str, Any]) -> Group:
    """The summary for a terminal."""
    seeds = summary["seeds"]
    kind = "splits" if len(set(summary["splits"])) > 1 else "seeds"
    count = f"{len(seeds)} {kind}, mean ± {DEVIATION}" if len(seeds) > 1 else "1 seed"
    layers = layers_text(summary["layer_type"], summary["mask"])
    best = headline(summary["metrics"], summary["metric_best"])
    each = [key.removeprefix("val_") for key in summary["metrics"] if key.startswith(f"val_{best}/")]  # of each target
    names = [*dict.fromkeys(["loss", best]), *sorted(each, key=len)]
    columns = {"": [f"{name} (%)" if best in PERCENT and name != "loss" else name for name in names]}
    for part, text in zip(PARTS, ("training", "validation", "test")):
        values = [summary["metrics"].get(f"{part}_{name}") for name in names]
        columns[text] = [
            format_metric(name, value["mean"], value["std"] if len(seeds) > 1 else None) if value else "–"
            for name, value in zip(names, values)
        ]
    memory = summary["peak_memory_mib"]
    caption = f"{summary['num_parameters']:,} parameters, {summary['wall_time_s']['total']:.1f} s of training" + (
        f", {memory:.0f} MiB peak memory" if memory else ""
    )
    return titled_table(f"{summary['name']} ({layers}): {count}, at the best validation epoch", columns, caption)
