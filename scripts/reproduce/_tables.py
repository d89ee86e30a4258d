"""Common parts of the scripts that repeat published tables: options, runs of configs, and tables beside the paper's."""

import argparse
import csv
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from _bench import described, draw_lines, machine, markdown, pyplot, save_json, save_plot

from pyg_topomask.run import RunError, check_config, run_config
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.errors import MissingDataError
from pyg_topomask.run.output.files import write_text
from pyg_topomask.run.output.report import format_metric
from pyg_topomask.viz.drawing import PALETTE

CONFIGS = Path(__file__).parents[2] / "configs"
FOLDERS = {"Primphormer": "primphormer", "Transformer": "full", "Exphormer": "exphormer", "GRF": "grf", "KMIP": "kmip"}
"""Method -> its folder of configs."""

SPREAD = "± is the standard deviation of the sample over runs."
SAMPLE, SAMPLE_EPOCHS = (1000, 200, 200), 2  # graphs and epochs that are timed to plan a budget
BUDGET_SHARES = (20, 40, 60, 80, 100)
QUICK, QUICK_EPOCHS = (400, 100, 100), 3
EQUAL = ("epochs", "time")  # two comparisons of methods: for equal epochs, and in the time of the first row
STORED = "results-published"  # folder of the reports behind docs/results
MADE = "<!-- redraw.py makes what follows -->\n"  # in a page of docs/results, between the text and the table


Report = Mapping[str, Any]
Lines = Callable[[Report], Iterator[str]]
Plot = Callable[[Report, Path], None]
Curves = Sequence[Sequence[tuple[float, float]]]
"""Seconds and results of each seed."""


@dataclass(frozen=True)
class Published:
    """Published mean and standard deviation of a metric on a data set's test set."""

    title: str
    metric: str
    value: Mapping[str, str]
    """Method -> the figure as printed."""


def table_parser(doc: str, name: str, quick: str, **settings: Any) -> argparse.ArgumentParser:
    """A parser with the options of every script that writes a table, and the table's ``name``.

    ``doc`` is the script's docstring.
    """
    made = argparse.ArgumentParser(description=doc.split("\n")[0], **settings)
    made.set_defaults(name=name)
    made.add_argument("--out", type=Path, default=Path(f"results/reproduce/{name}"), help="runs, report and plot")
    either = made.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help=f"{quick}; its files go to the folder quick/ of --out")
    either.add_argument("--results", type=Path, help="folder of pages to publish in, docs/results")
    return made


def read_options(made: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line. A trial has its own folder, so that it replaces no report."""
    options = made.parse_args(arguments)
    if options.quick:
        options.out /= "quick"
    for name, value in vars(options).items():
        if isinstance(value, list):  # drop repeated values
            setattr(options, name, list(dict.fromkeys(value)))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=options.out).close()
    except OSError as error:
        made.error(f"--out {options.out} cannot be written: {error}")
    return options


def positive(text: str) -> int:
    """Type of options that are positive integers."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def start(main: Callable[[], None]) -> None:
    """Run a script; report errors of data or configs, and interruptions, in one line."""
    try:
        main()
    except RunError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; the same command continues and keeps finished runs", file=sys.stderr)
        sys.exit(130)


def parser(doc: str, datasets: Sequence[str], name: str) -> argparse.ArgumentParser:
    """A parser with the options of the scripts that run configs of several data sets."""
    made = table_parser(doc, name, f"{QUICK[0]} training graphs, {QUICK_EPOCHS} epochs, 1 seed")
    made.add_argument("--datasets", nargs="+", choices=datasets, default=list(datasets))
    made.add_argument("--methods", nargs="+", choices=list(FOLDERS), default=["Primphormer"])
    made.add_argument("--seeds", type=positive, default=4, help="runs of each config")
    made.add_argument(
        "--minutes", type=float, help="train each config for the epochs that fit, with its schedule planned for them"
    )
    return made


def reproduce(table: Mapping[str, Published], options: argparse.Namespace) -> None:
    """Run every method on every data set, as :func:`tabulate` does.

    Finished runs are kept. To continue after an interruption, start the same command again.
    """
    pairs = product(options.datasets, options.methods)
    rows = (run_row(method, dataset, table[dataset], options) for dataset, method in pairs)
    tabulate({"quick": options.quick, "minutes": options.minutes}, rows, lines, plot, options)


def store(report: Mapping[str, Any], lines: Lines, options: argparse.Namespace) -> None:
    """Write a report as JSON and its table as Markdown into ``--out``, and with ``--results`` into the page there.

    The table of a page is not replaced by one with fewer rows.
    """
    text = "\n".join(lines(report)) + "\n"
    save_json(options.out / f"{options.name}.json", report)
    write_text(options.out / f"{options.name}.md", text)
    if options.results is None:
        return
    page = options.results / f"{options.name}.md"
    lost = published_table(page).count("\n|") - text.count("\n|")
    if lost > 0:
        print(f"{page} keeps its table, which has {lost} more rows; remove it to replace it")
        return
    publish_table(page, text)
    save_json(reports_of(options.results) / f"{options.name}.json", report)


def finish(report: Mapping[str, Any], lines: Lines, plot: Plot, options: argparse.Namespace) -> None:
    """Store a report, draw its picture and print its table."""
    store(report, lines, options)
    plot(report, options.out / f"{options.name}.png")
    print("\n".join(lines(report)))


def tabulate(
    settings: Mapping[str, Any],
    rows: Iterable[dict[str, Any]],
    lines: Lines,
    plot: Plot,
    options: argparse.Namespace,
) -> None:
    """Make the rows of a report. Store it after each, and finish it."""
    report = {"machine": machine(), **settings, "rows": []}
    for row in rows:
        report["rows"].append(row)
        store(report, lines, options)
    finish(report, lines, plot, options)


def run_row(method: str, dataset: str, published: Published, options: argparse.Namespace) -> dict[str, Any]:
    """The results of one config, or a note why it was not run."""
    path, folder = CONFIGS / FOLDERS[method] / f"{dataset}.yaml", options.out / method
    row: dict[str, Any] = {"dataset": dataset, "title": published.title, "method": method}
    row |= {"metric": published.metric, "published": published.value.get(method)}
    if not path.is_file():
        return row | {"note": f"no config for {method}"}
    seeds = 1 if options.quick else options.seeds
    try:
        overrides = shortened(path, folder, options)
        summary = run_config(path, folder, seeds, overrides)
    except MissingDataError as error:
        print(f"{dataset}: {error}")
        return row | {"note": "not available here"}
    metrics, epochs = summary["metrics"], summary["epochs"]
    row |= {part: metrics[f"{part}_{published.metric}"] for part in ("val", "test")}
    row |= {"epochs": epochs, "best_epochs": summary["best_epochs"], "parameters": summary["num_parameters"]}
    row |= {"seeds": summary["seeds"], "seconds": summary["wall_time_s"]["values"]}
    row["seconds_per_epoch"] = sum(row["seconds"]) / sum(epochs)
    row["peak_memory_mib"] = summary["peak_memory_mib"]
    runs = [Path(summary["folder"]) / str(seed) for seed in summary["seeds"]]
    row["curves"] = [read_curve(run, published.metric, row["seconds_per_epoch"]) for run in runs]
    return row


def shortened(path: Path, folder: Path, options: argparse.Namespace) -> list[str]:
    """Overrides that shorten a run: few graphs (``--quick``), or the epochs that fit into ``--minutes``."""
    if options.quick:
        return _sample(QUICK, QUICK_EPOCHS, "quick")
    if options.minutes is None:
        return []
    epochs = planned_epochs(path, folder, options.minutes)
    return [
        f"optim.max_epoch={epochs}",
        f"optim.num_warmup_epochs={warmup_of(path, epochs)}",
        "train.ckpt_period=1",
        f"name_tag={options.minutes:g}min",
    ]


def warmup_of(path: Path, epochs: int) -> int:
    """Warm-up of a config that is shortened to ``epochs``: the same share of them, halves rounded up, never all."""
    optim = check_config(path)[0].config.optim
    return min(int(optim.num_warmup_epochs * epochs / optim.max_epoch + 0.5), epochs - 1)


def planned_epochs(path: Path, folder: Path, minutes: float) -> int:
    """Number of epochs that fit, estimated from timed epochs on a sample of the graphs, and stored for the next start.

    The number is fixed before the run, because the learning rate depends on it and the run must be repeatable.
    """
    plan = folder / f"plan-{path.stem}-{minutes:g}min.json"
    if not plan.is_file():
        timed = run_config(path, folder, overrides=_sample(SAMPLE, SAMPLE_EPOCHS, "timing"))
        parts = load_dataset(check_config(path)[0].config.dataset).parts
        if parts is None:
            raise RunError("--minutes: only data sets with their own split can be planned for")
        share = len(parts[0]) / SAMPLE[0]
        seconds = timed["wall_time_s"]["total"] / SAMPLE_EPOCHS * share
        save_json(plan, {"seconds_per_epoch": seconds, "epochs": max(1, round(60 * minutes / seconds))})
    return int(json.loads(plan.read_text())["epochs"])


def _sample(graphs: Sequence[int], epochs: int, tag: str) -> list[str]:
    return [
        "dataset.split_mode=random",
        f"dataset.split={list(graphs)}",
        f"optim.max_epoch={epochs}",
        "optim.num_warmup_epochs=0",
        f"name_tag={tag}",
    ]


def read_curve(run: Path, metric: str, seconds_per_epoch: float) -> list[tuple[float, float]]:
    """Validation metric over seconds of training, if all epochs take the same time."""
    with (run / "metrics.csv").open() as file:
        return [
            ((int(row["epoch"]) + 1) * seconds_per_epoch, float(row[f"val_{metric}"])) for row in csv.DictReader(file)
        ]


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield f"{described(report['machine'])}."
    if report["quick"]:
        yield f"A trial on {QUICK[0]} training graphs: these figures only show that everything runs."
    if report["minutes"]:
        yield (
            f"Each run was planned for {report['minutes']:g} minutes: its number of epochs follows from a timed "
            'sample, so the actual time in the column "minutes" differs. The schedule is shortened to these epochs; '
            "everything else is as published. The published figures are those of complete runs."
        )
    yield f"Results after the epoch of the best validation result, with the settings of the configs. {SPREAD}"
    yield ""
    head = "data set | method | parameters: | epochs: | s/epoch: | minutes: | metric | validation: | test: | published:"
    yield from markdown(head, map(_cells, report["rows"]))
    if report["minutes"]:
        yield from _curve_lines(report["rows"])


def _cells(row: Mapping[str, Any]) -> list[Any]:
    published = row["published"] or "–"
    if "note" in row:
        return [row["title"], row["method"], row["note"], "", "", "", row["metric"], "", "", published]
    figures = [mean_and_std(row["metric"], row[part]["values"]) for part in ("val", "test")]
    times = f"{row['seconds_per_epoch']:.1f}", f"{statistics.fmean(row['seconds']) / 60:.1f}"
    known = [row["title"], row["method"], f"{row['parameters']:,}", max(row["epochs"])]
    return [*known, *times, row["metric"], *figures, published]


def _curve_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Validation metric of the first seed after each fifth of the budget, at the last epoch finished by then."""
    yield ""
    cells = []
    for row in (row for row in rows if "curves" in row):
        values = [value for _, value in row["curves"][0]]
        finished = [len(values) * share // 100 for share in BUDGET_SHARES]
        figures = [format_metric(row["metric"], values[n - 1]) if n else "–" for n in finished]
        cells.append([f"{row['title']}, {row['method']}", *figures])
    yield from markdown("validation after | " + " | ".join(f"{share} %:" for share in BUDGET_SHARES), cells)


def mean_and_std(metric: str, values: Sequence[float]) -> str:
    """Text of the mean of runs and their standard deviation."""
    return format_metric(metric, statistics.fmean(values), sample_std(values))


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation of the sample; None for one value. (That of ``summary.json`` is of the population.)"""
    return statistics.stdev(values) if len(values) > 1 else None


def reports_of(pages: Path) -> Path:
    """The folder of the reports behind the pages of ``docs/results``."""
    return pages.resolve().parents[1] / STORED


def published_table(page: Path) -> str:
    """The table of a page, without the text before it; empty if there is none."""
    return page.read_text().partition(MADE)[2] if page.is_file() else ""


def publish_table(page: Path, table: str) -> None:
    """Replace the table of a page, and keep the text before it. A new page has its name as title."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text = page.read_text().partition(MADE)[0] if page.is_file() else f"# {page.stem}\n\n"
    write_text(page, text + MADE + table)


def plot(report: Report, path: Path) -> None:
    """Draw the validation metric over time, with a panel for each data set and a line for each method."""
    panels: dict[tuple[str, str], dict[str, Curves]] = {}
    for row in report["rows"]:
        if "curves" in row:
            panel = panels.setdefault((row["title"], row["metric"]), {})
            panel[f"{row['method']}, test {mean_and_std(row['metric'], row['test']['values'])}"] = row["curves"]
    plot_curves(panels, path)


def plot_curves(panels: Mapping[tuple[str, str], Mapping[str, Curves]], path: Path) -> None:
    """Draw validation results over time.

    Args:
        panels: Data set and metric -> label of a method -> seconds and results of each seed.
        path: The picture; without results, none is written.
    """

    def points(curves: Curves) -> Iterator[tuple[float, float]]:
        for curve in curves:
            yield from ((seconds / 60, value) for seconds, value in curve)
            yield math.nan, math.nan  # the line of a seed ends

    shown = {
        f"{title}, {metric}": {label: points(curves) for label, curves in methods.items()}
        for (title, metric), methods in panels.items()
    }
    draw_lines(shown, path, "minutes of training", "validation result")


def plot_runs(panels: Mapping[str, Mapping[str, Sequence[float]]], label: str, path: Path, columns: int = 4) -> None:
    """Draw a panel for each data set with a row for each method: a dot for each run and a line at their mean.

    Args:
        panels: Data set -> method -> results of the runs.
        label: What the results are.
        path: The picture; without results, none is written.
        columns: Largest number of panels side by side.
    """
    if not panels:
        return
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = 1.2 + 0.3 * max(map(len, panels.values()))
    size = (4.5 * columns, height * rows)
    figure, axes = pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, methods) in zip(axes.flat, panels.items()):
        for row, values in enumerate(methods.values()):
            axis.plot(values, [row] * len(values), "o", ms=4, color=PALETTE[0], alpha=0.7)
            axis.plot([statistics.fmean(values)] * 2, [row - 0.3, row + 0.3], color=PALETTE[1])
        axis.set_yticks(range(len(methods)), list(methods))
        axis.invert_yaxis()
        axis.set(title=title, xlabel=f"{label}; line: mean")
    save_plot(figure, path)
