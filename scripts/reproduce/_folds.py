"""Common parts of the scripts that compare rows run by run, on the outer folds of Errica et al. or on seeds.

Errica et al., *A Fair Comparison of Graph Neural Networks for Graph Classification*, ICLR 2020.
"""

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _bench import markdown, read_json, resumed
from _fitting import mean_and_spread
from _tables import (
    EQUAL,
    Lines,
    Plot,
    Report,
    described,
    finish,
    machine,
    plot_runs,
    positive,
    read_options,
    store,
    table_parser,
)
from scipy import stats

from pyg_topomask.run import RunError, check_config, run_config
from pyg_topomask.run.errors import MissingDataError

SOCIAL = ("imdb-binary", "imdb-multi", "reddit-binary", "reddit-multi-5k", "collab")
"""Data sets without node features. Errica et al. have other folds for them where degrees are the features."""

METRICS = "metrics.csv"  # file of a run, with a header and a line for each epoch


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
    return [
        f"optim.max_epoch={epochs}",
        f"optim.num_warmup_epochs={warmup}",
        f"name_tag={letters}",
    ]


def run_folder(path: Path, out: Path, settings: Sequence[str]) -> Path:
    """Folder of the one run of a config."""
    parsed = check_config(path, settings)[0]
    return out / "runs" / parsed.name / str(parsed.config.seed)


def run_once(path: Path, out: Path, settings: Sequence[str], metric: str = "accuracy") -> dict[str, Any]:
    """Results of one run after the epoch of the best validation result; ``"seconds"`` are as of `timed_run`, and
    ``"ran"`` is the number of epochs.
    """
    summary, seconds = timed_run(path, out, settings)
    found = {part: summary["metrics"][f"{part}_{metric}"]["values"][0] for part in ("val", "test")}
    return found | {"seconds": seconds, "ran": summary["epochs"][0], "parameters": summary["num_parameters"]}


def timed_run(path: Path, out: Path, settings: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Summary of a run of the config's seed, and its seconds of processor time.

    If the run was interrupted, the time is measured from its last start on and scaled to all epochs. If it had no epoch
    left, the time is its wall time.
    """
    config, folder = check_config(path, settings)[0].config, run_folder(path, out, settings)
    finished, curve = (folder / "result.json").is_file(), folder / METRICS
    done = len(curve.read_text().splitlines()) - 1 if curve.is_file() else 0
    if done < config.optim.max_epoch:
        done -= done % config.train.ckpt_period  # training continues from the last checkpoint
    begin = time.process_time()
    summary = run_config(path, out / "runs", 1, settings)
    seconds, epochs = time.process_time() - begin, summary["epochs"][0]
    if finished or done >= epochs:
        return summary, summary["wall_time_s"]["total"]
    return summary, seconds * epochs / (epochs - done)


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Mean difference in percentage points, run by run, with the 95 % interval of the paired t-test."""
    gaps = [100 * (own - other) for own, other in zip(values, others)]
    if not gaps:
        return "–"
    low, high = interval(gaps) or (None, None)
    mean = f"{statistics.fmean(gaps):+.1f}"
    return mean if low is None else f"{mean} ({low:+.1f} to {high:+.1f})"


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


def equal_epochs(row: Mapping[str, Any], epochs: int, report: Path, first: str) -> int:
    """Epochs of a run: those given, or as many as take the time of the first method, by the times of the first seed.

    Raises:
        RunError: If the first method was not run.
    """
    if row["equal"] == "epochs":
        return epochs
    found = read_json(report)["rows"]
    base, own = (found.get(equal_key(row["dataset"], method, "epochs")) for method in (first, row["method"]))
    if base is None:
        raise RunError(f"rows of equal time need those of {first!r}; add it to --methods")
    per_epoch = own["seconds"][0] / (own.get("ran") or own["epochs"])[0]  # a run may stop early
    return max(2, min(round(base["seconds"][0] / per_epoch), 10 * epochs))


def machines(report: Report) -> str:
    """Where the runs were made, with the numbers of runs on each data set if the machines differ.

    A trial (``--quick``) is said to be one.
    """
    trial = "A trial of 2 epochs, which only shows that everything runs: " if report.get("quick") else ""
    return trial + _places(report)


def _places(report: Report) -> str:
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


@dataclass(frozen=True)
class Comparison:
    """Rows that a script compares run by run; its table and plot, and its command.

    Args:
        doc: Docstring of the script.
        name: Name of the script and its report.
        epochs: Number of epochs on each data set.
        methods: All methods.
        run: Makes a run: the row, the number of the run, the epochs and the folder -> its results.
        what: What the results are, for the table of `lines`.
        columns: Key of a row -> title of its column, for the first columns of the table.
        places: Decimals of the results.
        scale: Factor of the results.
        label: What the results are, in the plot.
        panel, line: Title of a row's panel in the plot, and its name there; keys of the row are in braces.
        runs: Number of runs of each row.
        rows: Key in the report -> the row without results, for one data set and method.
        default: Data sets without ``--datasets``; all if :obj:`None`.
    """

    doc: str | None
    name: str
    epochs: Mapping[str, int]
    methods: Iterable[str]
    run: Callable[[Mapping[str, Any], int, int, Path], dict[str, Any]]
    what: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    places: int = 3
    scale: float = 100
    label: str = "test accuracy (%)"
    panel: str = "{dataset}"
    line: str = "{method}"
    runs: int = 3
    rows: Callable[[str, str], Mapping[str, Mapping[str, str]]] = one_row
    default: Sequence[str] | None = None

    def lines(self, report: Report) -> Iterator[str]:
        """The table of runs with several seeds, and how they were made."""
        yield f"{machines(report)}. {self.what}\n"
        head = "parameters: | seeds: | epochs: | s/epoch: | validation: | test: | 95 % of the mean:"
        yield from markdown(" | ".join([*self.columns.values(), head]), map(self._cells, report["rows"].values()))

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        val, test = ([self.scale * value for value in row[part]] for part in ("val", "test"))
        epochs, span = row.get("trained", row["epochs"])[0], interval(test)
        cells = [*(row[key] for key in self.columns), f"{row['parameters'][0]:,}", len(test), epochs]
        cells += [f"{statistics.median(row['seconds']) / epochs:.1f}"]
        cells += [mean_and_spread(part, self.places) for part in (val, test)]
        return [*cells, "–" if span is None else f"{span[0]:.{self.places}f} to {span[1]:.{self.places}f}"]

    def plot(self, report: Report, path: Path) -> None:
        """Test results of all runs."""
        panels: dict[str, dict[str, Sequence[float]]] = {}
        for row in report["rows"].values():
            panel = panels.setdefault(self.panel.format_map(row), {})
            panel[self.line.format_map(row)] = [self.scale * value for value in row["test"]]
        plot_runs(panels, self.label, path)

    def main(
        self, arguments: Sequence[str] | None = None, lines: Lines | None = None, plot: Plot | None = None
    ) -> None:
        """Make the first run of every row of a data set, then the second, and so on. Draw a plot at the end.

        Finished runs are kept, also those of another machine. Data sets that can neither be found nor downloaded are
        left out. A script may have its own table and plot.

        Raises:
            RunError: If no data set is found, or if the folder has a report with other settings.
        """
        lines, methods, datasets = lines or self.lines, list(self.methods), list(self.epochs)
        parser = table_parser(self.doc or "", self.name, "2 epochs, 1 run")
        parser.add_argument("--datasets", nargs="+", choices=datasets, default=self.default or datasets)
        parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
        parser.add_argument("--runs", type=int, choices=range(1, 11), default=self.runs, help="folds or seeds")
        parser.add_argument("--epochs", type=positive, help="epochs of each run, instead of those of the data set")
        options = read_options(parser, arguments)
        if options.quick:
            options.runs, options.epochs = 1, 2
        settings = {"quick": options.quick, "epochs": options.epochs}
        report = _earlier(options.out / f"{self.name}.json", settings)
        for dataset in options.datasets:
            try:
                for run in range(options.runs):
                    self._fill(report, dataset, run, lines, options)
            except MissingDataError as error:
                print(f"{dataset} is left out: {error}")
        if not report["rows"]:
            raise RunError("nothing was run, because no data set was found")
        finish(report, lines, plot or self.plot, options)

    def _fill(self, report: dict[str, Any], dataset: str, run: int, lines: Lines, options: argparse.Namespace) -> None:
        """Make one run of every row. Write the report after each."""
        epochs = options.epochs or self.epochs[dataset]
        for method in options.methods:
            for key, start in self.rows(dataset, method).items():
                row = report["rows"].get(key, dict(start))
                if len(row.get("test", [])) > run:
                    continue
                where = {"epochs": epochs, "machine": described(machine())}
                for name, value in (self.run(row, run, epochs, options.out) | where).items():
                    row.setdefault(name, []).append(value)
                report["rows"][key] = row
                store(report, lines, options)


def _earlier(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report of the folder, to be continued, or an empty one."""
    found = read_json(path)
    other = [f"{key}: {found.get(key)!r}" for key in settings if found.get(key) != settings[key]]
    if found and other:
        raise RunError(f"{path} has other settings ({', '.join(other)}); choose another folder with --out")
    return resumed(path, settings, "rows")
