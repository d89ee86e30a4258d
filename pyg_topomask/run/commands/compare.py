"""``topomask compare``: a table of finished runs with paired differences."""

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.output.progress import standard_output
from pyg_topomask.run.output.report import DEVIATION, PERCENT, format_metric, headline, summarize, titled_table
from pyg_topomask.run.trained_model import FinishedRun, find_run
from pyg_topomask.run.training.settings import LOWER_IS_BETTER

CONFIDENCE = 0.95
"""Level of the confidence intervals."""

_MIN_SHARED = 3
"""Shared seeds of an interval. That of two, 12.7 standard errors to each side, says nothing."""

Row = dict[str, Any]
"""One run in the tables, with the keys of `_row`; differences are run minus baseline over the seeds that both have.

None stands for what a run does not have: the standard deviation of one seed, a difference without shared seeds, the
ends ``low`` and ``high`` of an interval over fewer than three.
"""


@dataclass(frozen=True)
class Comparison:
    """Comparable runs.

    Args:
        metric: Name of the metric.
        dataset: Name of the data set.
        baseline: Name of the baseline.
        rows: A row for each run, that of the baseline first, by the name of the column.
        notes: Sentences about what the numbers do not show.
        kind: What the results of a run differ in: ``"seeds"``, or ``"splits"`` if there are several.
    """

    metric: str
    dataset: str
    baseline: str
    rows: list[Row]
    notes: list[str]
    kind: str = "seeds"

    @property
    def caption(self) -> str:
        """How to read the table, a line each."""
        line = f"{'Lower' if self.metric in LOWER_IS_BETTER else 'Higher'} is better."
        if len(self.rows) > 1:
            line += f" Differences to {self.baseline} are over shared {self.kind}; intervals are of a paired t-test."
        return "\n".join([line, *self.notes])


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    comparison = compare(find_runs(arguments.runs, arguments.baseline))
    console, (validation, test, costs) = standard_output(), tables(comparison)
    title = f"{comparison.dataset}, validation: mean ± {DEVIATION} over {comparison.kind}, at the best epoch"
    console.print(titled_table(title, validation, comparison.caption))
    console.print(titled_table("Test, at the same epochs: choose by validation alone", test, ""))
    console.print(titled_table("Costs", costs, ""))


def find_runs(sources: Sequence[str | Path], baseline: str | Path | None = None) -> list[FinishedRun]:
    """The runs, each once, the baseline first.

    Raises:
        RunError: If a run is not found.
    """
    first = [] if baseline is None else [baseline]
    return list({run.folder.resolve(): run for run in map(find_run, [*first, *sources])}.values())


def compare(runs: Sequence[FinishedRun]) -> Comparison:
    """Compare runs with the first one.

    Raises:
        RunError: If the runs have other data, splits, evaluations or metrics than the baseline.
    """
    baseline = runs[0]
    for run in runs:
        difference = _incomparable(run, baseline)
        if difference is not None:
            raise RunError(f"{run.folder} and {baseline.folder} cannot be compared: {difference}")
    metric = headline(next(iter(baseline.results.values()))["metrics"], baseline.experiment.training.metric)
    labels = _labels(runs)
    rows = [_row(run, label, baseline, metric) for run, label in zip(runs, labels)]
    kind = "splits" if any(len(_splits(run)) > 1 for run in runs) else "seeds"
    notes = _notes(runs, rows, kind)
    return Comparison(metric, baseline.experiment.data.name, labels[0], rows, notes, kind)


def _labels(runs: Sequence[FinishedRun]) -> list[str]:
    """The names of the runs, after as many of the folders above as tell all of them apart."""
    labels, above = [run.name for run in runs], 0
    while len({*labels}) < len(runs):
        above += 1
        labels = ["/".join(run.folder.resolve().parts[-run.name.count("/") - 1 - above :]) for run in runs]
    return labels


def _incomparable(run: FinishedRun, baseline: FinishedRun) -> str | None:
    """Why two runs measure different things; None if they do not."""
    ours, theirs = _measured(run), _measured(baseline)
    for name, value in ours.items():
        if theirs.get(name) != value:
            return f"{name} is {value} and {theirs.get(name)}"
    if _splits(run).isdisjoint(_splits(baseline)):
        shown = " and ".join(", ".join(map(str, sorted(_splits(one)))) for one in (run, baseline))
        return f"dataset.split_index is {shown}"
    own, other, split = run.by_seed(), baseline.by_seed(), run.experiment.data.split
    if split.mode == "random" and split.seed is None and own.keys().isdisjoint(other):
        return "the split is drawn from the seed, and they share no seed"
    for key in own.keys() & other.keys():
        left, right = (found[key].get("graphs_or_nodes") for found in (own, other))
        if left and right and left != right:
            return f"the sets have {'/'.join(map(str, left.values()))} and {'/'.join(map(str, right.values()))} items"
    return None


def _measured(run: FinishedRun) -> dict[str, Any]:
    """The settings that decide what a result measures: data, split, parts of evaluations, metric."""
    data, serving = run.experiment.data, run.experiment.data.serving
    parts = {"full_batch": [], "neighbor": ["batch_size", "neighbor_sizes"], "walks": ["max_nodes"]}.get(
        serving.evaluation, ["num_parts"]
    )
    return {
        "dataset.name": data.name.lower().replace("_", "-"),  # spelled in several ways
        **{key: value for key, value in data.identity.items() if key not in ("dataset.name", "dataset.dir")},
        **data.split.settings,
        "val.sampler": serving.evaluation,
        **{f"train.{key}": getattr(serving, key) for key in parts},
        "metric_best": run.experiment.training.metric,
    }


def _splits(run: FinishedRun) -> set[int]:
    return {split for _, split in run.by_seed()}


def _row(run: FinishedRun, name: str, baseline: FinishedRun, metric: str) -> Row:
    summary = summarize(name, list(run.results.values()), metric)
    row: Row = {"name": name, "seeds": len(run.results)}
    for part in ("val", "test"):
        key = f"{part}_{metric}"
        if key not in summary["metrics"]:
            raise RunError(f"{run.folder} has no {key}, because it is of another version; run it again")
        found = summary["metrics"][key]
        row[part] = {"mean": found["mean"], "std": found["std"] if len(run.results) > 1 else None}
        row[part] |= _difference(run, baseline, key)
    row |= {"parameters": summary["num_parameters"], "memory_mib": summary["peak_memory_mib"]}
    row |= {"seconds_per_epoch": summary["wall_time_s"]["total"] / max(1, sum(summary["epochs"]))}
    return row | {"cuda_mib": summary["peak_cuda_mib"]}


def _difference(run: FinishedRun, baseline: FinishedRun, key: str) -> Row:
    """The number of shared seeds, the mean difference over them, and the ends of its confidence interval.

    The interval is that of the paired t-test, which takes the differences as normal and independent.
    """
    own, other = run.by_seed(), baseline.by_seed()
    shared = sorted(own.keys() & other.keys()) if run is not baseline else []
    differences = [own[seed]["metrics"][key] - other[seed]["metrics"][key] for seed in shared]
    mean = sum(differences) / len(differences) if shared else None
    low = high = None
    if mean is not None and math.isfinite(mean) and len(shared) >= _MIN_SHARED and len({*differences}) > 1:
        low, high = map(float, stats.ttest_1samp(differences, 0.0).confidence_interval(CONFIDENCE))
    return {"shared": len(shared), "difference": mean, "low": low, "high": high}


def _notes(runs: Sequence[FinishedRun], rows: Sequence[Row], kind: str) -> list[str]:
    notes, epochs = [], {row["name"]: run.experiment.training.epochs for run, row in zip(runs, rows)}
    if len({*epochs.values()}) > 1:
        found = ", ".join(f"{name} {count}" for name, count in epochs.items())
        notes.append(f"The runs have different numbers of epochs (optim.max_epoch): {found}.")
    if any(row[part]["low"] is None for row in rows[1:] for part in ("val", "test")):
        needs = f"An interval needs at least {_MIN_SHARED} {kind} that both runs have"
        notes.append(f"{needs}, whose differences are finite and not all equal.")
    for row in rows[1:]:
        shared = row["test"]["shared"]
        if 0 < shared < max(row["seeds"], rows[0]["seeds"]):
            both = f"{row['name']}: the difference is over the {kind} that both runs have ({shared})"
            notes.append(f"{both}; means are over all {kind} of a run.")
    has_folds = runs[0].experiment.data.split.num_folds is not None and len(_splits(runs[0])) > 1
    if has_folds and any(row["test"]["low"] is not None for row in rows):
        notes.append("Folds share training graphs, so intervals over folds are too narrow.")
    unfinished = {row["name"]: run.unfinished for run, row in zip(runs, rows) if run.unfinished}
    return [*notes, *(f"{name}: {count} unfinished {kind} left out." for name, count in unfinished.items())]


def tables(comparison: Comparison) -> list[dict[str, list[str]]]:
    """Validation, test and costs: the cells of each column as text, by its name, without columns that have no value.

    There are three, so that each is narrower than a terminal of 80 columns.
    """
    rows, metric = comparison.rows, comparison.metric
    unit, points = (" (%)", " (points)") if metric in PERCENT else ("", "")
    seeds = {comparison.kind: [str(row["seeds"]) for row in rows]}
    parts = [
        {
            f"{part} {metric}{unit}": [format_metric(metric, row[part]["mean"], row[part]["std"]) for row in rows],
            f"difference{points}": [_signed(metric, row[part]["difference"]) for row in rows],
            "95 % interval": [_interval(metric, row[part]["low"], row[part]["high"]) for row in rows],
        }
        for part in ("val", "test")
    ]
    costs = {
        "parameters": [_whole(row["parameters"]) for row in rows],
        "wall s/epoch": [f"{time:.{3 if time < 1 else 1}f}" for time in (row["seconds_per_epoch"] for row in rows)],
        "memory MiB": [_whole(row["memory_mib"]) for row in rows],
        "CUDA MiB": [_whole(row["cuda_mib"]) for row in rows],
    }
    run = {"run": [row["name"] for row in rows]}
    found = (run | seeds | parts[0], run | parts[1], run | costs)
    return [{name: cells for name, cells in table.items() if {*cells} != {"–"}} for table in found]


def _interval(metric: str, low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{_signed(metric, low)} to {_signed(metric, high)}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _signed(metric: str, value: float | None) -> str:
    """A difference of two values of a metric, with its sign."""
    return "–" if value is None else format_metric(metric, value, sign="+").replace("-", "−")
