"""Common parts of the scripts that compare rows run by run, on the outer folds of Errica et al. or on seeds.

Errica et al., *A Fair Comparison of Graph Neural Networks for Graph Classification*, ICLR 2020.
"""

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _tables as tables
from _bench import described, machine, markdown, read_json, resumed
from _fitting import mean_and_spread
from _verdicts import gap_interval
from scipy import stats

from pyg_topomask.run import RunError, check_config, run_config
from pyg_topomask.run.errors import MissingDataError
from pyg_topomask.run.output.report import PERCENT
from pyg_topomask.run.training.checkpoint import epochs_done

SOCIAL = ("imdb-binary", "imdb-multi", "reddit-binary", "reddit-multi-5k", "collab")
"""Data sets without node features. Errica et al. have other folds for them where degrees are the features."""

DEAREST = ", time of the dearest"
"""End of the name of a row of message passing that has the processor time of the dearest row of its data set."""

EQUAL = ("epochs", "time")  # two comparisons of methods: for equal epochs, and in the time of the first row
SPREAD = "± is the standard deviation of the sample over runs."
Figure = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""Text of a cell, by the row and all rows of the report."""


def errica_fold(dataset: str, fold: int) -> list[str]:
    """Overrides of a config: outer fold ``fold`` with its inner split; for social graphs, that for degrees.

    Raises:
        MissingDataError: If the folds for degrees do not exist.
    """
    settings = ["dataset.split_mode=errica", f"dataset.split_index={fold}"]
    if dataset in SOCIAL:
        folder = Path(os.environ.get("TOPOMASK_DATA", "data")) / "splits" / "errica2020" / "COLLABORATIVE_DEGREE"
        if not folder.is_dir():
            raise MissingDataError(
                f"the folds of social graphs with degrees as features do not exist ({folder}); put those of Errica et "
                "al. there, or set the environment variable TOPOMASK_DATA"
            )
        settings.append(f"dataset.split_dir={folder}")
    return settings


def schedule(epochs: int, warmup: int, tag: str) -> list[str]:
    """Overrides for a run of that many epochs, in a folder of its own."""
    letters = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in tag)
    return [f"optim.max_epoch={epochs}", f"optim.num_warmup_epochs={warmup}", f"name_tag={letters}"]


def planned(path: Path, tag: str, run: int, epochs: int, settings: Iterable[str]) -> list[str]:
    """Overrides of a config for one run: settings, a seed, and so many epochs with the config's share of warm-up."""
    return [*settings, f"seed={run}", *schedule(epochs, tables.warmup_of(path, epochs), f"{tag}-{epochs}-{run}")]


def run_folder(path: Path, out: Path, settings: Sequence[str]) -> Path:
    """Folder of the one run of a config."""
    parsed = check_config(path, settings)[0]
    return out / "runs" / parsed.name / str(parsed.config.seed)


def run_once(
    path: Path, out: Path, settings: Sequence[str], metric: str = "accuracy", curves: bool = False
) -> dict[str, Any]:
    """Results of one run after the epoch of the best validation result; ``"seconds"`` are as of `timed_run`, and
    ``"ran"`` is the number of epochs. With ``curves``, also the validation results over time.
    """
    summary, seconds = timed_run(path, out, settings)
    found = {part: summary["metrics"][f"{part}_{metric}"]["values"][0] for part in ("val", "test")}
    found |= {"seconds": seconds, "ran": summary["epochs"][0], "parameters": summary["num_parameters"]}
    if curves:
        found["curves"] = tables.read_curve(run_folder(path, out, settings), metric, seconds / found["ran"])
    return found


def timed_run(path: Path, out: Path, settings: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Summary of a run of the config's seed, and its seconds of processor time.

    If the run was interrupted, the time is measured from its last start on and scaled to all epochs. If it had no epoch
    left, the time is its wall time.
    """
    folder = run_folder(path, out, settings)
    finished, done = (folder / "result.json").is_file(), epochs_done(folder)
    begin = time.process_time()
    summary = run_config(path, out / "runs", 1, settings)
    seconds, epochs = time.process_time() - begin, summary["epochs"][0]
    if finished or done >= epochs:
        return summary, summary["wall_time_s"]["total"]
    return summary, seconds * epochs / (epochs - done)


def difference(values: Sequence[float], others: Sequence[float], paired: bool) -> str:
    """Difference of means in percentage points with its 95 % interval: Welch's, or that of the paired t-test."""
    pairs = list(zip(values, others))
    if not pairs:
        return "–"
    if paired:  # runs that both have
        values, others = zip(*pairs)
    mean = f"{100 * (statistics.fmean(values) - statistics.fmean(others)):+.1f}"
    bounds = gap_interval(values, others, paired)
    return mean if bounds is None else f"{mean} ({100 * bounds[0]:+.1f} to {100 * bounds[1]:+.1f})"


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean by Student's t; None for one value or equal values."""
    if len(values) < 2 or max(values) == min(values):
        return None
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    return float(low), float(high)


def one_row(dataset: str, method: str) -> dict[str, dict[str, str]]:
    """Key in the report -> the row without results, if a method has one row on each data set."""
    return {f"{dataset}: {method}": {"dataset": dataset, "method": method}}


def equal_key(dataset: str, method: str, part: str) -> str:
    """Key in the report of a row of `equal_rows`."""
    return f"{dataset}: {method}, equal {part}"


def equal_rows(dataset: str, method: str, first: str) -> dict[str, dict[str, str]]:
    """Rows of a method without results: for equal epochs and, but for the first method, for equal time."""
    parts = EQUAL[: 1 if method == first else 2]
    return {equal_key(dataset, method, part): {"dataset": dataset, "method": method, "equal": part} for part in parts}


def equal_epochs(row: Mapping[str, Any], epochs: int, found: Mapping[str, Any], first: str) -> int:
    """Epochs of a run: those given, or as many as take the time of the first method, by the times of the first seed.

    ``found`` are the rows of the report.

    Raises:
        RunError: If the first method was not run.
    """
    if row["equal"] == "epochs":
        return epochs
    base, own = (found.get(equal_key(row["dataset"], method, "epochs")) for method in (first, row["method"]))
    if base is None:
        raise RunError(f"rows of equal time need those of {first!r}; add it to --methods")
    per_epoch = own["seconds"][0] / (own.get("ran") or own["epochs"])[0]  # a run may stop early
    return max(2, min(round(base["seconds"][0] / per_epoch), 10 * epochs))


def dearest_epochs(dataset: str, method: str, planned: int, found: Mapping[str, Any]) -> int:
    """Epochs of a method that take the time of the dearest row of a data set, by the medians over runs.

    Raises:
        RunError: If the method itself was not run.
    """
    rows = [row for row in found.values() if row["dataset"] == dataset and not row["method"].endswith(DEAREST)]
    times = {row["method"]: statistics.median(seconds(row)) for row in rows}
    if method not in times:
        raise RunError(f"the row of {method + DEAREST!r} needs that of {method!r}; add it to --methods")
    return round(planned * max(times.values()) / times[method])


def machines(report: tables.Report) -> str:
    """Where the runs were made, with the numbers of runs on each data set if the machines differ.

    A trial (``--quick``) is said to be one.
    """
    trial = "A trial of 2 epochs, which only shows that everything runs: " if report.get("quick") else ""
    return trial + _places(report)


def _places(report: tables.Report) -> str:
    """The machines; the numbers of runs on each data set if there are several."""
    found: dict[str, Counter[str]] = {}
    for row in report["rows"].values():
        for where in row["machine"]:
            found.setdefault(where, Counter())[row["dataset"]] += 1
    if len(found) < 2:
        return next(iter(found), "No runs")
    parts = (f"{', '.join(_counted(*pair) for pair in runs.items())}: {where}" for where, runs in found.items())
    return f"{'; '.join(parts)}. The seconds of a row are those of the machine of its last run"


def _counted(dataset: str, count: int) -> str:
    return f"{dataset} ({count} {'run' if count == 1 else 'runs'})"


def seconds(row: Mapping[str, Any]) -> list[float]:
    """Seconds of the runs on the machine of the last run, since times of different machines cannot be compared."""
    return [time for time, where in zip(row["seconds"], row["machine"]) if where == row["machine"][-1]]


def gap_to(key_of: Callable[[Mapping[str, Any]], str], paired: bool = False) -> Figure:
    """A figure of a row: its difference to the row with this key; ``paired`` where runs are folds, or share data."""

    def figure(row: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
        other = rows.get(key_of(row))
        return "–" if other is None or other is row else difference(row["test"], other["test"], paired)

    return figure


@dataclass(frozen=True)
class Comparison:
    """Rows that a script compares run by run; its table and plot, and its command.

    Args:
        doc: Docstring of the script.
        name: Name of the script and its report.
        epochs: Number of epochs on each data set.
        methods: All methods.
        run: Makes a run: the row, the number of the run, the epochs and the folder -> its results.
        what: What the results are, for the table.
        columns: Key of a row -> title of its column, for the first columns of the table.
        figures: Further columns of the table: title -> text, by the row and all rows.
        form: Factor and decimals of the results.
        metrics: Data set -> metric, which has its own factor and decimals.
        label: What the results are, in the plot.
        runs: Number of runs of each row.
        rows: Key in the report -> the row without results, for one data set and method. In the plot, the part of the
            key before the colon names a panel.
        first: If given, all methods have a second row, trained for as many epochs as take the time of this method.
        absent: Whether a data set has no row of a method.
        optional: Data sets and methods that are run on request alone.
        most: Largest number of runs.
        longer: Message passing that has a second row, with the time of the dearest row.
    """

    doc: str | None
    name: str
    epochs: Mapping[str, int]
    methods: Iterable[str]
    run: Callable[[Mapping[str, Any], int, int, Path], dict[str, Any]]
    what: str = ""
    columns: Mapping[str, str] = field(default_factory=lambda: {"dataset": "data set", "method": "layers"})
    figures: Mapping[str, Figure] = field(default_factory=dict)
    form: tuple[float, int] = (100, 2)
    metrics: Mapping[str, str] = field(default_factory=dict)
    label: str = "test accuracy (%)"
    runs: int = 3
    rows: Callable[[str, str], Mapping[str, Mapping[str, str]]] = one_row
    first: str | None = None
    absent: Callable[[str, str], bool] = lambda dataset, method: False
    optional: Collection[str] = ()
    most: int = 10
    longer: str | None = None

    def lines(self, report: tables.Report) -> Iterator[str]:
        """The table, and how the runs were made."""
        yield f"{machines(report)}. {self.what} {SPREAD}\n"
        columns = self.columns | ({"equal": "equal"} if self.first else {})
        figures = ["parameters", "runs", "epochs", "s/epoch", "validation", "test", "95 % of the mean", *self.figures]
        titles = [*columns.values(), *(f"{title}:" for title in figures)]
        rows = report["rows"]
        cells = [[*map(row.get, columns), *self._figures(row, rows)] for row in rows.values()]
        for row in self._missing(rows):
            cells.append([*map(row.get, columns), *("not run" if name == "test" else "–" for name in figures)])
        known = [column for column in zip(titles, *cells) if set(column[1:]) != {"–"}]
        heads, *cells = zip(*known)
        yield from markdown(" | ".join(heads), cells)

    def _missing(self, rows: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
        """Rows of equal time that were not run, on data sets whose message passing is not the dearest."""
        for dataset in dict.fromkeys(row["dataset"] for row in rows.values() if self.longer):
            for key, row in one_row(dataset, f"{self.longer}{DEAREST}").items():
                if key not in rows and f"{dataset}: {self.longer}" in rows and not self.absent(dataset, row["method"]):
                    yield row

    def _figures(self, row: Mapping[str, Any], rows: Mapping[str, Any]) -> Iterator[Any]:
        scale, places = self._form(row)
        epochs = statistics.fmean(row.get("ran") or row.get("trained") or row["epochs"])
        yield f"{row['parameters'][0]:,}" if "parameters" in row else "–"
        yield from (len(row["test"]), f"{epochs:.0f}")
        yield f"{statistics.median(seconds(row)) / epochs:.2f}" if "seconds" in row else "–"
        yield from (mean_and_spread(row[part], places, scale) if part in row else "–" for part in ("val", "test"))
        span = interval([scale * value for value in row["test"]])
        yield "–" if span is None else f"{span[0]:.{places}f} to {span[1]:.{places}f}"
        yield from (figure(row, rows) for figure in self.figures.values())

    def _form(self, row: Mapping[str, Any]) -> tuple[float, int]:
        """Factor and decimals of the results of a row."""
        metric = self.metrics.get(row["dataset"])
        return self.form if metric is None else (100, 2) if metric in PERCENT else (1, 4)

    def plot(self, report: tables.Report, path: Path) -> None:
        """Validation results over time, with a panel for each data set, or the test results of all runs."""
        panels: dict[str, dict[str, Sequence[Any]]] = {}
        curves = all("curves" in row for row in report["rows"].values())
        for key, row in report["rows"].items():
            panel, _, line = key.partition(": ")
            if self.first is not None:
                panel, line = f"{panel}, equal {row['equal']}", row["method"]
            scaled = [self._form(row)[0] * value for value in row["test"]]
            panels.setdefault(panel, {})[line] = row["curves"] if curves else scaled
        tables.plot_curves(panels, path) if curves else tables.plot_runs(panels, self.label, path)

    def all_methods(self) -> list[str]:
        """All methods, and the one of equal time."""
        return [*self.methods, *([f"{self.longer}{DEAREST}"] if self.longer else [])]

    def start(self) -> None:
        """Do this as a script, whose errors are one line."""
        tables.start(self.main)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Make the first run of every row of a data set, then the second, and so on. Draw a plot at the end.

        Finished runs are kept, also those of another machine. Data sets that can neither be found nor downloaded are
        left out.

        Raises:
            RunError: If no data set is found, or if the folder has a report with other settings.
        """
        parser = tables.table_parser(self.doc or "", self.name, "2 epochs, 1 run")
        for option, names in (("--datasets", list(self.epochs)), ("--methods", self.all_methods())):
            default = [name for name in names if name not in self.optional]
            parser.add_argument(option, nargs="+", choices=names, default=default)
        parser.add_argument(
            "--runs", type=int, choices=range(1, 1 + self.most), default=self.runs, help="folds or seeds"
        )
        parser.add_argument(
            "--epochs", type=tables.positive, help="epochs of each run, instead of those of the data set"
        )
        options = tables.read_options(parser, arguments)
        if options.quick:
            options.runs, options.epochs = 1, 2
        settings = {"quick": options.quick, "epochs": options.epochs}
        report = _earlier(options.out / f"{self.name}.json", settings)
        for dataset in options.datasets:
            try:
                for run in range(options.runs):
                    self._fill(report, dataset, run, options)
            except MissingDataError as error:
                print(f"{dataset} is left out: {error}")
        if not report["rows"]:
            raise RunError("nothing was run, because no data set was found")
        tables.finish(report, self.lines, self.plot, options)

    def _fill(self, report: dict[str, Any], dataset: str, run: int, options: argparse.Namespace) -> None:
        """Make one run of every row. Write the report after each."""
        for key, empty in self._planned(dataset, options.methods):
            row = report["rows"].get(key, dict(empty))
            if len(row.get("test", [])) > run:
                continue
            planned = epochs = options.epochs or self.epochs[dataset]
            found: dict[str, Any] = {}
            if self.first is not None:
                found["trained"] = epochs = equal_epochs(row, planned, report["rows"], self.first)
            made = row | {"method": row["method"].removesuffix(DEAREST)}
            if made["method"] != row["method"]:
                found["trained"] = epochs = dearest_epochs(dataset, made["method"], epochs, report["rows"])
            found |= self.run(made, run, epochs, options.out) | {"epochs": planned, "machine": described(machine())}
            begun = bool(row.get("test"))
            for name, value in found.items():
                if name in row or not begun:  # what earlier runs did not record stays out
                    row.setdefault(name, []).append(value)
            report["rows"][key] = row
            report["commits"] = sorted({*report.get("commits", []), tables.commit()})
            tables.store(report, self.lines, options)

    def _planned(self, dataset: str, methods: Iterable[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        for method in methods:
            if not self.absent(dataset, method):
                rows = self.rows(dataset, method) if self.first is None else equal_rows(dataset, method, self.first)
                yield from rows.items()


def _earlier(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report of the folder, to be continued, or an empty one."""
    found = read_json(path)
    other = [f"{key}: {found.get(key)!r}" for key in settings if found.get(key) != settings[key]]
    if found and other:
        raise RunError(f"{path} has other settings ({', '.join(other)}); choose another folder with --out")
    return resumed(path, settings, "rows")
