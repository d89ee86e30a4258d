"""``topomask report``: one HTML file about a run, which opens without a network."""

from __future__ import annotations

import base64
import csv
import io
from argparse import Namespace
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.errors import NoPictureError
from pyg_topomask.run.finished_run import find_run
from pyg_topomask.run.model.attentions import layers_text, mask_of
from pyg_topomask.run.output.files import output_path, write_output
from pyg_topomask.run.output.progress import Display, error_output
from pyg_topomask.run.task import PARTS, Task
from pyg_topomask.run.trained_model import open_run

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem; border-bottom: 1px solid #8886; text-align: right; }
th:first-child, td:first-child { text-align: left; } img { max-width: 100%; background: white; }
pre { padding: 1rem; border: 1px solid #8886; overflow: auto; }
"""


_LEGIBLE = 20
"""Number of classes up to which the cells of a confusion matrix have numbers."""


def main(arguments: Namespace, rest: list[str]) -> int:
    """Run the command."""
    out = output_path(arguments.out)
    with Display(error_output()) as display, display.working("writing the report"):
        text = report(arguments.run, arguments.graph, arguments.layer, arguments.head, arguments.node)
    print(write_output(out, text))
    return 0


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
    seed = opened.folder
    run = find_run(seed)
    (result,) = run.results.values()
    metrics, environment = result.pop("metrics"), result.pop("environment") or {}
    names = dict.fromkeys(["loss", *(key.partition("_")[2] for key in sorted(metrics))])
    scores = [[name, *(metrics.get(f"{part}_{name}") for part in PARTS)] for name in names]
    curves = seed / "curves.png"  # a run without training has none
    drawn = []
    for kind in ("mask", "attention"):
        try:
            drawn.append(_image(picture(kind, seed / "config.yaml", graph, layer, head, node, seed), kind))
        except NoPictureError:
            continue
    title, layers = escape(run.name), layers_text(run.config.gt.layer_type, mask_of(run.config))
    sections = {
        "Metrics at the best validation epoch": _table([["", "training", "validation", "test"], *scores]),
        "Curves": _embedded(curves.read_bytes(), "curves") if curves.exists() else "",
        "Test set": _errors(opened.task, predict(seed, "test")),
        f"Layer {layer}": "".join(drawn) or "<p>This attention has neither a mask nor weights of pairs.</p>",
        "Environment": _table([["", ""], *map(list, (environment | result).items())]),
        "Config": f"<pre>{escape((seed / 'config.yaml').read_text(encoding='utf-8'))}</pre>",
    }
    start = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    head_line = f"<h1>{title}</h1><p>{escape(layers)} on {escape(run.config.dataset.name)}</p>"
    body = "".join(f"<h2>{escape(name)}</h2>{content}\n" for name, content in sections.items())
    return f"{start}</head><body>{head_line}{body}</body></html>\n"


def _table(rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first row has the names of the columns."""
    lines = ["".join(f"<td>{_shown(value)}</td>" for value in row) for row in rows]
    lines[0] = lines[0].replace("td>", "th>")
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _errors(task: Task, table: str) -> str:
    """The confusion matrix of classes, or predicted by true values."""
    rows = list(csv.DictReader(io.StringIO(table)))
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    if task.kind in ("binary", "multiclass"):
        counts = np.zeros((task.num_classes, task.num_classes), dtype=int)
        np.add.at(counts, tuple([int(row[name]) for row in rows] for name in ("target", "predicted")), 1)
        axes.imshow(counts, cmap="Blues")
        axes.set(xlabel="predicted class", ylabel="true class", title="number of items")
        for (true, guess), count in np.ndenumerate(counts) if task.num_classes <= _LEGIBLE else ():
            axes.text(guess, true, str(count), ha="center", color="white" if count > counts.max() / 2 else "black")
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


def _image(figure: Figure, text: str) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    pyplot.close(figure)
    return _embedded(stream.getvalue(), text)


def _embedded(png: bytes, text: str) -> str:
    return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></p>'
