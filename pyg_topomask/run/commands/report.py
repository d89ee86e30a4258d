"""``topomask report``: one HTML file about a run, which opens without a network."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.errors import NoPictureError, RunError
from pyg_topomask.run.finished_run import FinishedRun, find_run
from pyg_topomask.run.model.attentions import layers_text, mask_of
from pyg_topomask.run.output.report import headline
from pyg_topomask.run.task import PARTS, Task
from pyg_topomask.run.trained_model import open_run
from pyg_topomask.viz import plot_curves

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem; border-bottom: 1px solid #8886; text-align: right; }
th:first-child, td:first-child { text-align: left; } img { max-width: 100%; background: white; }
pre { padding: 1rem; border: 1px solid #8886; overflow: auto; }
"""


_LEGIBLE = 20
"""Number of classes up to which the cells of a confusion matrix have numbers."""


def report(folder: str | Path, graph: int = 0, layer: int = 0, head: int = 0, node: int | None = None) -> str:
    """The report of one seed as HTML: metrics, curves, pictures of a layer, errors of the test set, and the config.

    Args:
        folder: Folder of the seed.
        graph: Graph whose mask or attention is drawn.
        layer: Layer that is drawn.
        head: Head that is drawn.
        node: Node whose row is drawn; as in :func:`~pyg_topomask.run.commands.show.picture` if :obj:`None`.

    Raises:
        RunError: If the run is not finished, or its files or its data cannot be read.
    """
    opened = open_run(folder)
    run = find_run(opened.folder)
    config = run.config
    layers = layers_text(config.gt.layer_type, mask_of(config))
    drawn = [_drawn(kind, opened.folder, graph, layer, head, node) for kind in ("mask", "attention")]
    sections = [
        f"<h1>{escape(run.name)}</h1><p>{escape(layers)} on {escape(config.dataset.name)}</p>",
        _section("Metrics at the best validation epoch", _metrics_table(next(iter(run.results.values())))),
        _section("Curves", _curves(run)),
        _section("Test set", _errors(opened.task, predict(opened.folder, "test"))),
        _section(f"Layer {layer}", "".join(drawn) or "<p>This attention has neither a mask nor kept pairs.</p>"),
        _section("Environment", _environment_table(next(iter(run.results.values())))),
        _section("Config", f"<pre>{escape((opened.folder / 'config.yaml').read_text(encoding='utf-8'))}</pre>"),
    ]
    title = f"<title>{escape(run.name)}</title>"
    start = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    return f"{start}{title}<style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}\n"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _metrics_table(result: Mapping[str, Any]) -> str:
    values = result["metrics"]
    names = dict.fromkeys(["loss", *(key.partition("_")[2] for key in sorted(values))])
    rows = [[name, *(_shown(values.get(f"{part}_{name}")) for part in PARTS)] for name in names]
    return _table(["", "training", "validation", "test"], rows)


def _environment_table(result: Mapping[str, Any]) -> str:
    more = result.get("environment") or {"torch": result.get("torch")}
    rows = [["pyg_topomask", str(result.get("version"))], *([name, _shown(value)] for name, value in more.items())]
    rows += [["seed", str(result["seed"])], ["parameters", f"{result['num_parameters']:,}"]]
    rows += [["epochs", str(result["epochs"])], ["best epoch", str(result["best_epoch"])]]
    rows += [["wall time", f"{result['wall_time_s']:.1f} s"], ["peak memory (MiB)", _shown(result["peak_memory_mib"])]]
    return _table(["", ""], rows)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(run: FinishedRun) -> str:
    curves = run.curves()
    if not curves:
        return "<p>A run without training has no curves.</p>"
    metric = headline(dict.fromkeys(curves[0]), run.config.metric_best)
    images = []
    for name in dict.fromkeys(("loss", metric)):
        parts = {text: f"{part}_{name}" for text, part in (("training", "train"), ("validation", "val"))}
        known = {text: key for text, key in parts.items() if key in curves[0]}  # training has no ranks
        if not known:
            path = next(iter(run.results)) / "metrics.csv"
            raise RunError(f"{path} is damaged (there is no column 'val_{name}'); run that seed again")
        found = {text: {"epoch": curves[0]["epoch"], name: curves[0][key]} for text, key in known.items()}
        images.append(_image(plot_curves(found, [name]), f"{name} by epoch"))
    return "".join(images)


def _drawn(kind: str, folder: Path, graph: int, layer: int, head: int, node: int | None) -> str:
    """A picture of the layer, or an empty text if its attention has none of this kind."""
    try:
        return _image(picture(kind, folder / "config.yaml", graph, layer, head, node, folder), kind)
    except NoPictureError:
        return ""


def _errors(task: Task, table: str) -> str:
    """The confusion matrix of classes, or predicted by true values."""
    rows = list(csv.DictReader(io.StringIO(table)))
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    if task.kind in ("binary", "multiclass"):
        _draw_confusion(axes, rows, task.num_classes)
    elif task.kind == "regression":
        for name in (name for name in rows[0] if name.startswith("target")):
            pairs = [(float(row[name]), float(row[name.replace("target", "predicted")])) for row in rows if row[name]]
            axes.plot(*zip(*pairs), ".", alpha=0.5, label=name.replace("_", " "))
        axes.axline((0, 0), slope=1, color="0.6", lw=0.8)
        axes.set(xlabel="true value", ylabel="predicted value")
        axes.legend(frameon=False)
    else:
        return f"<p>There is no picture of the errors of a {task.kind} task; topomask predict writes them.</p>"
    return _image(figure, "predicted and true values")


def _draw_confusion(axes: Axes, rows: Sequence[Mapping[str, str]], num_classes: int) -> None:
    counts = np.zeros((num_classes, num_classes), dtype=int)
    for row in rows:
        counts[int(row["target"]), int(row["predicted"])] += 1
    axes.imshow(counts, cmap="Blues")
    axes.set(xlabel="predicted class", ylabel="true class", title="number of items")
    if num_classes <= _LEGIBLE:
        axes.set(xticks=range(num_classes), yticks=range(num_classes))
        for (true, guess), count in np.ndenumerate(counts):
            colour = "white" if count > counts.max() / 2 else "black"
            axes.text(guess, true, str(count), ha="center", va="center", color=colour)


def _image(figure: Figure, text: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    matplotlib.pyplot.close(figure)
    return (
        f'<p><img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"></p>'
    )
