"""Common parts of the scripts that compare rows run by run, on the outer folds of Errica et al. or on seeds.

Errica et al., *A Fair Comparison of Graph Neural Networks for Graph Classification*, ICLR 2020.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bench import read_json, resumed
from _fitting import mean_and_spread
from _tables import described, machine, plot_runs, positive, read_options, save_json, table_parser, write_table
from scipy import stats

from pyg_topomask.run import RunError, check_config, run_config
from pyg_topomask.run.errors import MissingDataError

SOCIAL = ("imdb-binary", "imdb-multi", "reddit-binary", "reddit-multi-5k", "collab")
"""Data sets without node features. Errica et al. have other folds for them where degrees are the features."""

METRICS = "metrics.csv"  # file of a run, with a header and a line for each epoch

Report = Mapping[str, Any]


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
    """Results of one run after the epoch of the best validation result; ``"seconds"`` as of `timed_run`."""
    summary, seconds = timed_run(path, out, settings)
    found = {part: summary["metrics"][f"{part}_{metric}"]["values"][0] for part in ("val", "test")}
    return found | {"seconds": seconds, "parameters": summary["num_parameters"]}


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


def seed_lines(
    report: Report, what: str, names: Mapping[str, str], scale: float = 1.0, places: int = 3
) -> Iterator[str]:
    """A table of runs with several seeds, and how they were made.

    Args:
        report: The report of `compare`.
        what: What the results are.
        names: Key of a row -> title of its column, for the first columns.
        scale, places: Factor of the results, and their decimals.
    """
    yield (
        f"{machines(report)}. {what} Mean and standard deviation of the sample over seeds, and the 95 % interval of "
        "the mean by Student's t. Seconds are processor time of training, per epoch."
    )
    yield ""
    titles = [*names.values(), "parameters", "seeds", "epochs", "s/epoch", "validation", "test", "95 % of the mean"]
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "---|" * len(names) + "--:|" * 7
    for row in report["rows"].values():
        val, test = ([scale * value for value in row[part]] for part in ("val", "test"))
        low, high = interval(test) or (None, None)
        epochs = row.get("trained", row["epochs"])[0]
        cells = [*(row[key] for key in names), f"{row['parameters'][0]:,}", len(test), epochs]
        cells += [f"{statistics.median(row['seconds']) / epochs:.1f}"]
        cells += [mean_and_spread(part, places) for part in (val, test)]
        cells.append("–" if low is None else f"{low:.{places}f} to {high:.{places}f}")
        yield "| " + " | ".join(map(str, cells)) + " |"


def plot_seeds(report: Report, what: str, path: Path, scale: float = 1.0) -> None:
    """Test results of all runs, with a panel for each data set and comparison."""
    panels: dict[str, dict[str, Sequence[float]]] = {}
    for row in report["rows"].values():
        title = row["dataset"] + (f", equal {row['equal']}" if "equal" in row else "")
        panels.setdefault(title, {})[row["method"]] = [scale * value for value in row["test"]]
    plot_runs(panels, what, path, columns=2)


@dataclass(frozen=True)
class Comparison:
    """Rows that a script compares run by run.

    Args:
        name: Name of the script and its report.
        epochs: Number of epochs on each data set.
        methods: All methods.
        runs: Number of runs of each row.
        run: Makes a run: the row, the number of the run, the epochs and the folder -> its results.
        lines, plot: Those of the script.
        rows: Key in the report -> the row without results, for one data set and method.
        default: Data sets without ``--datasets``; all if :obj:`None`.
    """

    name: str
    epochs: Mapping[str, int]
    methods: Sequence[str]
    runs: int
    run: Callable[[Mapping[str, Any], int, int, Path], dict[str, Any]]
    lines: Callable[[Report], Iterator[str]]
    plot: Callable[[Report, Path], None]
    rows: Callable[[str, str], Mapping[str, Mapping[str, str]]] = one_row
    default: Sequence[str] | None = None


def compare(made: Comparison, doc: str, arguments: Sequence[str] | None = None) -> None:
    """Make the first run of every row of a data set, then the second, and so on. Draw a plot at the end.

    Finished runs are kept, also those of another machine. Data sets that can neither be found nor downloaded are left
    out.

    Raises:
        RunError: If no data set is found, or if the folder has a report with other settings.
    """
    parser = table_parser(doc, made.name, "2 epochs, 1 run")
    parser.add_argument("--datasets", nargs="+", choices=list(made.epochs), default=made.default or list(made.epochs))
    parser.add_argument("--methods", nargs="+", choices=made.methods, default=list(made.methods))
    parser.add_argument(
        "--runs", type=int, choices=range(1, 11), metavar="1..10", default=made.runs, help="folds or seeds of each row"
    )
    parser.add_argument("--epochs", type=positive, help="epochs of each run, instead of those of the data set")
    options = read_options(parser, arguments)
    if options.quick:
        options.runs, options.epochs = 1, 2
    settings = {"quick": options.quick, "epochs": options.epochs}
    report = _earlier(options.out / f"{made.name}.json", settings)
    for dataset in options.datasets:
        try:
            for run in range(options.runs):
                _fill(made, report, dataset, run, options)
        except MissingDataError as error:
            print(f"{dataset} is left out: {error}")
    if not report["rows"]:
        raise RunError("nothing was run, because no data set was found")
    made.plot(report, options.out / f"{made.name}.png")
    print("\n".join(made.lines(report)))


def _earlier(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report of the folder, to be continued, or an empty one."""
    found = read_json(path)
    other = [f"{key}: {found.get(key)!r}" for key in settings if found.get(key) != settings[key]]
    if found and other:
        raise RunError(f"{path} has other settings ({', '.join(other)}); choose another folder with --out")
    return resumed(path, settings, "rows")


def _fill(made: Comparison, report: dict[str, Any], dataset: str, run: int, options: argparse.Namespace) -> None:
    """Make one run of every row. Write the report after each."""
    epochs = options.epochs or made.epochs[dataset]
    for method in options.methods:
        for key, start in made.rows(dataset, method).items():
            row = report["rows"].get(key, dict(start))
            if len(row.get("test", [])) > run:
                continue
            where = {"epochs": epochs, "machine": described(machine())}
            for name, value in (made.run(row, run, epochs, options.out) | where).items():
                row.setdefault(name, []).append(value)
            report["rows"][key] = row
            save_json(options.out / f"{made.name}.json", report)
            write_table(options, made.name, "\n".join(made.lines(report)) + "\n")
