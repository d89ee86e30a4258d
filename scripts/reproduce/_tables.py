"""Common parts of the scripts that repeat published tables: options, reports, pages and pictures."""

import argparse
import csv
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from _bench import draw_lines, drawn, save_json

from pyg_topomask.run import RunError, check_config
from pyg_topomask.run.files import write_text
from pyg_topomask.viz.drawing import PALETTE

CONFIGS = Path(__file__).parents[2] / "configs"
STORED = "results-published"  # folder of the reports behind docs/results
MADE = "<!-- redraw.py makes what follows -->\n"  # in a page of docs/results, between the text and the table
END = "\n<!-- until here -->\n"  # after the table, if text follows


Report = Mapping[str, Any]
Lines = Callable[[Report], Iterator[str]]
Plot = Callable[[Report, Path], None]
Curves = Sequence[Sequence[tuple[float, float]]]
"""Seconds and results of each seed."""


def table_parser(doc: str, name: str, quick: str) -> argparse.ArgumentParser:
    """A parser with the options of every script that writes a table, and the table's ``name``.

    ``doc`` is the script's docstring.
    """
    made = argparse.ArgumentParser(description=doc.split("\n")[0])
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


def commit() -> str:
    """The commit of the code; empty outside of a repository."""
    command = ["git", "-C", str(CONFIGS), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


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


def warmup_of(path: Path, epochs: int) -> int:
    """Warm-up of a config that is shortened to ``epochs``: the same share of them, halves rounded up, never all."""
    optim = check_config(path)[0].config.optim
    return min(int(optim.num_warmup_epochs * epochs / optim.max_epoch + 0.5), epochs - 1)


def read_curve(run: Path, metric: str, seconds_per_epoch: float) -> list[tuple[float, float]]:
    """Validation metric over seconds of training, if all epochs take the same time."""
    with (run / "metrics.csv").open() as file:
        return [(int(row["epoch"]) * seconds_per_epoch, float(row[f"val_{metric}"])) for row in csv.DictReader(file)]


def reports_of(pages: Path) -> Path:
    """The folder of the reports behind the pages of ``docs/results``."""
    return pages.resolve().parents[1] / STORED


def published_table(page: Path) -> str:
    """The table of a page, without the text before it; empty if there is none."""
    return page.read_text().partition(MADE)[2] if page.is_file() else ""


def publish_table(page: Path, table: str) -> None:
    """Replace the table of a page, and keep the text before it and after `END`. A new page has its name as title."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text, _, old = (page.read_text() if page.is_file() else f"# {page.stem}\n\n").partition(MADE)
    _, end, after = old.partition(END)
    write_text(page, text + MADE + table + end + after)


def plot_curves(panels: Mapping[str, Mapping[str, Curves]], path: Path) -> None:
    """Draw validation results over time.

    Args:
        panels: Data set -> label of a method -> seconds and results of each seed.
        path: The picture; without results, none is written.
    """

    def points(curves: Curves) -> Iterator[tuple[float, float]]:
        for curve in curves:
            yield from ((seconds / 60, value) for seconds, value in curve)
            yield math.nan, math.nan  # the line of a seed ends

    shown = {title: {label: points(curves) for label, curves in methods.items()} for title, methods in panels.items()}
    draw_lines(shown, path, "minutes of training", "validation result")


def plot_runs(panels: Mapping[str, Mapping[str, Sequence[float]]], label: str, path: Path) -> None:
    """Draw a panel for each data set with a row for each method: a dot for each run and a line at their mean.

    Args:
        panels: Data set -> method -> results of the runs.
        label: What the results are.
        path: The picture; without results, none is written.
    """
    height = 1.2 + 0.3 * max(map(len, panels.values()), default=0)
    for axis, methods in drawn(panels, path, (4.5, height)):
        for row, values in enumerate(methods.values()):
            axis.plot(values, [row] * len(values), "o", ms=4, color=PALETTE[0], alpha=0.7)
            axis.plot([statistics.fmean(values)] * 2, [row - 0.3, row + 0.3], color=PALETTE[1])
        axis.set_yticks(range(len(methods)), list(methods))
        axis.invert_yaxis()
        axis.set_xlabel(f"{label}; line: mean")
