"""``topomask compare``: a table of finished runs with paired differences, and a picture of metric against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from pyg_topomask.run.config import Config
from pyg_topomask.run.config.schema import LOWER_IS_BETTER
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.finished_run import FinishedRun, find_run, seed_and_split
from pyg_topomask.run.model.attentions import layers_text, mask_of
from pyg_topomask.run.output.report import PERCENT, headline
from pyg_topomask.viz import plot_curves
from pyg_topomask.viz.drawing import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
"""Level of the confidence intervals."""

TIME = "training time (s)"
"""Horizontal axis of the picture."""

_DATA_KEYS = ("format", "name", "task", "task_type", "num_graphs", "num_nodes", "slic_compactness")


@dataclass(frozen=True)
class Row:
    """One run in the table; differences are run minus baseline over the seeds that both have.

    Args:
        name: Name of the run.
        folder: Its folder.
        layers: Its layers and mask.
        seeds: Number of seeds.
        mean: Mean of the metric.
        std: Standard deviation of the population, as in ``summary.json``; None for one seed.
        shared: Number of seeds, or splits, shared with the baseline; 0 for the baseline itself.
        difference: Mean difference to the baseline; None without shared seeds.
        low: Lower end of the confidence interval; None for fewer than two shared seeds.
        high: Upper end.
        parameters: Number of parameters.
        seconds_per_epoch: Wall time of an epoch.
        memory_mib: Peak memory of the process; None if it was not recorded.
        cuda_mib: Peak memory of the CUDA device; None without one.
    """

    name: str
    folder: str
    layers: str
    seeds: int
    mean: float
    std: float | None
    shared: int
    difference: float | None
    low: float | None
    high: float | None
    parameters: int
    seconds_per_epoch: float
    memory_mib: float | None
    cuda_mib: float | None


@dataclass(frozen=True)
class Comparison:
    """Comparable runs.

    Args:
        metric: Name of the metric.
        dataset: Name of the data set.
        best_is_max: Whether a larger value is better.
        baseline: Name of the baseline.
        rows: A row for each run, in the given order.
        notes: Sentences about what the numbers do not show.
        kind: What the results of a run differ in: ``"seeds"``, or ``"splits"`` if there are several.
    """

    metric: str
    dataset: str
    best_is_max: bool
    baseline: str
    rows: list[Row]
    notes: list[str]
    kind: str = "seeds"


def find_runs(sources: Sequence[str | Path], baseline: str | Path | None = None) -> tuple[list[FinishedRun], int]:
    """The runs, each once, and the position of the baseline, which is put first if it is not one of them.

    Raises:
        RunError: If a run is not found.
    """
    runs: dict[Path, FinishedRun] = {}
    for source in sources:
        run = find_run(source)
        runs.setdefault(run.folder.resolve(), run)
    position = 0
    if baseline is not None:
        names = [run.name for run in runs.values()]
        if not Path(baseline).expanduser().exists() and names.count(str(baseline)) == 1:
            position = names.index(str(baseline))
        else:
            chosen = find_run(baseline)
            runs = runs if chosen.folder.resolve() in runs else {chosen.folder.resolve(): chosen, **runs}
            position = list(runs).index(chosen.folder.resolve())
    return list(runs.values()), position


def compare(runs: Sequence[FinishedRun], position: int = 0) -> Comparison:
    """Compare runs with the one at ``position``.

    Raises:
        RunError: If the runs have other data, splits, evaluations or metrics than the baseline.
    """
    baseline = runs[position]
    for run in runs:
        _refuse_incomparable(run, baseline)
    first = next(iter(baseline.results.values()))
    metric = headline(first["metrics"], baseline.config.metric_best)
    names = labels(runs)
    rows = [_row(run, name, baseline, metric) for run, name in zip(runs, names)]
    kind = "splits" if any(len({split for _, split in _by_seed(run)}) > 1 for run in runs) else "seeds"
    return Comparison(
        metric,
        baseline.config.dataset.name,
        metric not in LOWER_IS_BETTER,
        names[position],
        rows,
        _notes(runs, rows, position, kind),
        kind,
    )


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """A label for each run: its name, or its folder if several runs have the same name."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.folder) for run in runs]


def _refuse_incomparable(run: FinishedRun, baseline: FinishedRun) -> None:
    for what, ours, theirs in (
        ("data set", _data(run.config), _data(baseline.config)),
        ("split", run.config.dataset.split_settings, baseline.config.dataset.split_settings),
        ("evaluation", _evaluation(run.config), _evaluation(baseline.config)),
        ("metric", {"metric_best": run.config.metric_best}, {"metric_best": baseline.config.metric_best}),
    ):
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise _incomparable(run, baseline, what, f"{name} is {value} and {theirs.get(name)}")
    own, other = _by_seed(run), _by_seed(baseline)
    splits = {key[1] for key in own}, {key[1] for key in other}
    if splits[0].isdisjoint(splits[1]):
        shown = " and ".join(", ".join(map(str, sorted(part))) for part in splits)
        raise _incomparable(run, baseline, "split", f"dataset.split_index is {shown}")
    data = run.config.dataset
    if data.split_mode == "random" and data.split_seed is None and own.keys().isdisjoint(other):
        raise _incomparable(run, baseline, "split", "it is drawn from the seed, and they share no seed")
    for key in own.keys() & other.keys():
        left, right = (found[key].get("graphs_or_nodes") for found in (own, other))
        if left and right and left != right:
            raise _incomparable(run, baseline, "split", f"the sets have {_sizes(left)} and {_sizes(right)} items")


def _incomparable(run: FinishedRun, baseline: FinishedRun, what: str, reason: str) -> RunError:
    return RunError(f"{run.folder} and {baseline.folder} cannot be compared: they differ in the {what} ({reason})")


def _data(config: Config) -> dict[str, Any]:
    values = {f"dataset.{key}": getattr(config.dataset, key) for key in _DATA_KEYS}
    return values | {"dataset.name": config.dataset.name.lower().replace("_", "-")}  # spelled in several ways


def _evaluation(config: Config) -> dict[str, Any]:
    """What the graphs of evaluations depend on: whole graphs, or parts of one."""
    keys = {"full_batch": [], "neighbor": ["batch_size", "neighbor_sizes"]}.get(config.val.sampler, ["num_parts"])
    return {"val.sampler": config.val.sampler} | {f"train.{key}": getattr(config.train, key) for key in keys}


def _sizes(sizes: dict[str, int]) -> str:
    return "/".join(map(str, sizes.values()))


def _by_seed(run: FinishedRun) -> dict[tuple[int, int], dict[str, Any]]:
    return {seed_and_split(result): result for result in run.results.values()}


def _row(run: FinishedRun, name: str, baseline: FinishedRun, metric: str) -> Row:
    results, key = list(run.results.values()), f"test_{metric}"
    if any(key not in result["metrics"] for result in results):
        raise RunError(f"{run.folder} has no {key}, because it is of another version; run it again")
    values = np.array([result["metrics"][key] for result in results])
    difference, low, high, shared = _difference(run, baseline, key) if run is not baseline else (None, None, None, 0)
    peaks = {kind: [r[kind] for r in results if r[kind] is not None] for kind in ("peak_memory_mib", "peak_cuda_mib")}
    return Row(
        name,
        str(run.folder),
        layers_text(run.config.gt.layer_type, mask_of(run.config)),
        len(values),
        float(values.mean()),
        float(values.std()) if len(values) > 1 else None,
        shared,
        difference,
        low,
        high,
        results[0]["num_parameters"],
        run.seconds_per_epoch,
        max(peaks["peak_memory_mib"], default=None),
        max(peaks["peak_cuda_mib"], default=None),
    )


def _difference(
    run: FinishedRun, baseline: FinishedRun, key: str
) -> tuple[float | None, float | None, float | None, int]:
    """Mean difference over shared seeds, the ends of its confidence interval, and the number of shared seeds.

    The interval is that of the paired t-test, which takes the differences as normal and independent.
    """
    own, other = _by_seed(run), _by_seed(baseline)
    shared = sorted(own.keys() & other.keys())
    if not shared:
        return None, None, None, 0
    left, right = (np.array([found[seed]["metrics"][key] for seed in shared]) for found in (own, other))
    with np.errstate(invalid="ignore"):  # inf - inf
        differences = left - right
    difference = float(differences.mean())
    if not math.isfinite(difference) or np.ptp(differences) == 0:  # one difference, or no spread: no interval
        return difference, None, None, len(shared)
    low, high = stats.ttest_1samp(differences, 0.0).confidence_interval(CONFIDENCE)
    return difference, float(low), float(high), len(shared)


def _notes(runs: Sequence[FinishedRun], rows: Sequence[Row], position: int, kind: str) -> list[str]:
    notes = []
    others = [row for i, row in enumerate(rows) if i != position]
    if any(row.shared < 2 for row in others):
        notes.append(f"An interval needs at least two {kind} that both runs have.")
    if any(row.shared > 1 and row.low is None for row in others):
        notes.append(f"Without an interval: the difference is the same for all shared {kind}, or not finite.")
    splits = {split for _, split in _by_seed(runs[position])}
    has_folds = runs[0].config.dataset.num_folds is not None and len(splits) > 1
    if has_folds and any(row.low is not None for row in others):
        notes.append("Folds share training graphs, so intervals over folds are too narrow.")
    for run, row in zip(runs, rows):
        if run.unfinished:
            count = f"1 unfinished {kind[:-1]} is" if run.unfinished == 1 else f"{run.unfinished} unfinished {kind} are"
            notes.append(f"{row.name}: {count} left out.")
    return notes


def picture(runs: Sequence[FinishedRun], comparison: Comparison) -> Figure:
    """The validation metric by training time: the mean over seeds with a band of one standard deviation.

    Files of a run contain no time for each epoch. The time of epoch e is (e + 1) times the mean time of an epoch.

    Raises:
        RunError: If no run was trained.
    """
    key, scale = f"val_{comparison.metric}", 100 if comparison.metric in PERCENT else 1
    curves = {}
    for run, row in zip(runs, comparison.rows):
        seeds = [seed for seed in run.curves() if key in seed]
        if seeds:
            curves[literal(row.name)] = [
                {
                    TIME: [(epoch + 1) * run.seconds_per_epoch for epoch in seed["epoch"]],
                    key: [scale * value for value in seed[key]],
                }
                for seed in seeds
            ]
    if not curves:
        raise RunError("--out: no run has a metrics.csv to draw; runs without training have none")
    label = f"validation {comparison.metric}{' (%)' if scale == 100 else ''}"
    figure = plot_curves(curves, [key], [label], x=TIME)
    figure.axes[0].set_title(literal(comparison.dataset))
    return figure
