"""Common parts of the experiments on masks of graph random features: every method for equal epochs and equal time."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bench import described, markdown, save_json
from _folds import timed_run
from _tables import (
    EQUAL,
    SPREAD,
    Lines,
    Plot,
    plot_runs,
    positive,
    read_options,
    sample_std,
    table_parser,
    tabulate,
    warmup_of,
)

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import MissingDataError

FIRST = "GRF"
"""The row whose time is that of the second comparison."""


@dataclass(frozen=True)
class Experiment:
    """One data set of a table.

    Args:
        config: The file with all settings that a row does not change.
        epochs: Epochs of the first comparison.
        metric: Metric of the test set.
        methods: Row -> its settings; `FIRST` comes first.
    """

    config: Path
    epochs: int
    metric: str
    methods: Mapping[str, Sequence[str]]


def compare(
    name: str,
    doc: str,
    experiments: Mapping[str, Experiment],
    lines: Lines,
    plot: Plot,
    arguments: Sequence[str] | None = None,
) -> None:
    """Train every method on every data set, twice. Write the report after each row, and a plot at the end.

    Args:
        name: Name of the table.
        doc: The script's docstring.
        experiments: Data set -> its rows.
        lines: Lines of the table, from the report.
        plot: Draws the report.
        arguments: Command line.
    """
    methods = list(dict.fromkeys(row for experiment in experiments.values() for row in experiment.methods))
    made = table_parser(doc, name, "2 epochs, 1 seed")
    made.add_argument("--datasets", nargs="+", choices=list(experiments), default=list(experiments))
    made.add_argument("--methods", nargs="+", choices=methods, default=methods, help=f"rows; {FIRST} always")
    made.add_argument("--seeds", type=positive, default=3, help="runs of each row")
    made.add_argument("--epochs", type=positive, help="epochs of the first comparison, instead of the data set's")
    options = read_options(made, arguments)
    if options.quick:
        options.seeds, options.epochs = 1, 2
    tabulate({"seeds": options.seeds}, _rows(experiments, options), lines, plot, options)


def _rows(experiments: Mapping[str, Experiment], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for dataset in options.datasets:
        seconds = 0.0
        for method in experiments[dataset].methods:
            if method == FIRST or method in options.methods:
                row = _row(experiments[dataset], method, seconds, options)
                if method == FIRST and "by" in row:
                    seconds = row["by"]["epochs"]["seconds"]
                yield {"dataset": dataset, "method": method} | row


def _row(experiment: Experiment, method: str, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """Both results of one method; ``seconds`` is the time of the first row."""
    try:
        first = _run(experiment, method, options.epochs or experiment.epochs, options)
    except MissingDataError as error:
        print(f"{experiment.config.stem}: {error}")
        return {"note": "not available here"}
    if method == FIRST:
        return {"by": {"epochs": first, "time": first}}
    most = 3 if options.quick else 10 * first["epochs"]
    epochs = min(most, max(2, round(seconds / first["seconds_per_epoch"])))
    return {"by": {"epochs": first, "time": _run(experiment, method, epochs, options)}}


def _run(experiment: Experiment, method: str, epochs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Results of one method after a number of epochs."""
    path, metric = experiment.config, experiment.metric
    schedule = [f"optim.max_epoch={epochs}", f"optim.num_warmup_epochs={warmup_of(path, epochs)}"]
    settings = [*experiment.methods[method], *schedule]
    tag = f"name_tag={method.replace(' ', '-')}-{epochs}" + ("-quick" if options.quick else "")
    seconds = _processor_time(path, options, [*settings, tag])
    summary = run_config(path, options.out / "runs", options.seeds, [*settings, tag])
    return {
        "metric": metric,
        "test": summary["metrics"][f"test_{metric}"],
        "val": summary["metrics"][f"val_{metric}"],
        "parameters": summary["num_parameters"],
        "epochs": epochs,
        "seconds": seconds,
        "seconds_per_epoch": seconds / summary["epochs"][0],
    }


def _processor_time(path: Path, options: argparse.Namespace, settings: Sequence[str]) -> float:
    """Processor time of the first seed's run, in seconds; stored, because `timed_run` cannot measure a finished run."""
    stored = options.out / f"seconds-{path.stem}-{settings[-1].removeprefix('name_tag=')}.json"
    if not stored.is_file():
        save_json(stored, {"seconds": timed_run(path, options.out, settings)[1]})
    return float(json.loads(stored.read_text())["seconds"])


def table_lines(
    report: Mapping[str, Any], figure: Callable[[str, Mapping[str, float], int], str], what: str
) -> Iterator[str]:
    """The table, and how it was measured.

    Args:
        report: The report.
        figure: Text of a result, from the metric, its mean and standard deviation, and the number of seeds.
        what: What the figures are, for the first line.
    """
    yield (
        f"{described(report['machine'])}. {what} after the epoch of the best validation result; {report['seeds']} "
        f"seed(s) unless others are named. {SPREAD} Minutes are processor time of the first seed."
    )
    yield ""
    cells = []
    for row in report["rows"]:
        cells.append([row["dataset"], row["method"]])
        if "note" in row:
            cells[-1] += [row["note"], *[""] * 5]
            continue
        first, second = (row["by"][part] for part in EQUAL)
        figures = [_with_seeds(figure, part, report["seeds"]) for part in (first, second)]
        cells[-1] += [f"{first['parameters']:,}", first["epochs"], f"{first['seconds'] / 60:.1f}", figures[0]]
        cells[-1] += [second["epochs"], figures[1]]
    head = "data set | layers | parameters: | epochs: | minutes: | test, equal epochs: | epochs: | test, time of GRF:"
    yield from markdown(head, cells)


def _with_seeds(figure: Callable[[str, Mapping[str, float], int], str], part: Mapping[str, Any], seeds: int) -> str:
    """Text of one comparison's result; the number of seeds is named if it differs from that of the table."""
    values = part["test"]["values"]
    found = part["test"] | {"std": sample_std(values)}
    return figure(part["metric"], found, len(values)) + (f" ({len(values)} seed(s))" if len(values) != seeds else "")


def plot_comparisons(report: Mapping[str, Any], value: Callable[[float], float], label: str, path: Path) -> None:
    """Draw the results of all runs, with a panel for each data set and comparison; ``value`` is that of a metric."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"]:
        for part, title in zip(EQUAL, ("equal epochs", "time of GRF")) if "by" in row else ():
            methods = panels.setdefault(f"{row['dataset']}, {title}", {})
            methods[row["method"]] = [value(result) for result in row["by"][part]["test"]["values"]]
    plot_runs(panels, label, path)
