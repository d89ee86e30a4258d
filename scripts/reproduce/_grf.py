"""Common parts of the experiments on masks of graph random features: every method for equal epochs and equal time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bench import markdown
from _folds import Comparison, Report, equal_epochs, equal_key, equal_rows, machines, run_once, schedule
from _tables import warmup_of

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


def comparison(doc: str | None, name: str, experiments: Mapping[str, Experiment], **settings: Any) -> Comparison:
    """The rows of experiments; ``settings`` are for the plot."""

    def rows(dataset: str, method: str) -> dict[str, dict[str, str]]:
        return equal_rows(dataset, method, FIRST) if method in experiments[dataset].methods else {}

    def run(row: Mapping[str, Any], number: int, epochs: int, out: Path) -> dict[str, Any]:
        experiment, method = experiments[row["dataset"]], row["method"]
        epochs = equal_epochs(row, epochs, out / f"{name}.json", FIRST)
        planned = schedule(epochs, warmup_of(experiment.config, epochs), f"{method}-{epochs}-{number}")
        overrides = [*experiment.methods[method], f"seed={number}", *planned]
        return run_once(experiment.config, out, overrides, experiment.metric) | {"trained": epochs}

    epochs = {dataset: experiment.epochs for dataset, experiment in experiments.items()}
    methods = dict.fromkeys(method for experiment in experiments.values() for method in experiment.methods)
    return Comparison(doc, name, epochs, methods, run, rows=rows, panel="{dataset}, equal {equal}", **settings)


def table_lines(
    report: Report, experiments: Mapping[str, Experiment], figure: Callable[[str, Sequence[float]], str]
) -> Iterator[str]:
    """The table, and where it was made; ``figure`` is the text of several seeds' results, given the metric."""
    seeds = max(len(row["test"]) for row in report["rows"].values())
    yield f"{machines(report)}. {seeds} seed(s) unless others are named.\n"

    def result(row: Mapping[str, Any]) -> list[Any]:
        text, count = figure(experiments[row["dataset"]].metric, row["test"]), len(row["test"])
        return [row["trained"][0], text + (f" ({count} seed(s))" if count != seeds else "")]

    cells = []
    for row in (row for row in report["rows"].values() if row["equal"] == "epochs"):
        part = "epochs" if row["method"] == FIRST else "time"
        second = report["rows"].get(equal_key(row["dataset"], row["method"], part))
        epochs, text = result(row)
        cells.append([row["dataset"], row["method"], f"{row['parameters'][0]:,}", epochs])
        cells[-1] += [f"{row['seconds'][0] / 60:.1f}", text, *(result(second) if second else ("–", "–"))]
    head = "data set | layers | parameters: | epochs: | minutes: | test, equal epochs: | epochs: | test, time of GRF:"
    yield from markdown(head, cells)
