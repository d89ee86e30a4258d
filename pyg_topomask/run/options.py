"""The options of the commands about finished runs and pictures."""

from __future__ import annotations

import argparse
from typing import Any

OVERRIDES = "settings that override the file's: key=value, or key value pairs, such as optim.base_lr 0.01"
"""Description of the settings after a config's name."""


def add_show(commands: Any) -> None:
    """The options of ``topomask show``."""
    show = commands.add_parser(
        "show",
        help="draw the attention, mask or walks of a layer, on one graph of a config's data set, or print its engines",
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    show.add_argument(
        "kind",
        choices=("attention", "mask", "walks", "path"),
        metavar="KIND",
        help="attention: the pairs that k-MIP attention keeps, as arrows or a matrix; mask: a mask and one of its "
        "rows; walks: coverage and errors of a GRF mask by the number of walks; path: a table of the engines of masked "
        "attention on a batch, with their estimated times or the reasons why they cannot serve",
    )
    show.add_argument("config", metavar="CONFIG", help="YAML file")
    show.add_argument("--out", metavar="FILE", help="picture to write; its suffix gives the format (not for path)")
    _add_position(show)
    show.add_argument(
        "--checkpoint", metavar="PATH", help="best.ckpt of a run, or its folder (default: an untrained model)"
    )


def _add_position(parser: argparse.ArgumentParser) -> None:
    """Options that choose what is drawn."""
    for name, letter, text in (("graph", "I", "graph of the data set"), ("layer", "L", "layer"), ("head", "H", "head")):
        parser.add_argument(
            f"--{name}", type=int, default=0, metavar=letter, help=f"{text}, counted from 0 (default: 0)"
        )
    parser.add_argument("--node", type=int, metavar="V", help="draw only the row of this node")


def add_compare(commands: Any) -> None:
    """The options of ``topomask compare``."""
    compare = commands.add_parser(
        "compare",
        help="print a table of finished runs with paired differences, and draw metric against time",
        allow_abbrev=False,
    )
    compare.add_argument("runs", nargs="+", metavar="RUN", help="results folder, folder of a seed, or config")
    compare.add_argument(
        "--baseline", metavar="RUN", help="the run that the others are compared with (default: the first)"
    )
    compare.add_argument("--format", choices=("text", "markdown", "csv"), default="text", help="default: text")
    compare.add_argument("--out", metavar="FILE", help="picture of the validation metric by training time")


def add_predict(commands: Any) -> None:
    """The options of ``topomask predict``."""
    predict = commands.add_parser("predict", help="write a trained model's predictions as CSV", allow_abbrev=False)
    predict.add_argument("run", metavar="RUN", help="folder of a seed, or results folder with a single seed")
    predict.add_argument(
        "--data",
        default="test",
        metavar="DATA",
        help="train, val, test or all: items of the run's data set (default: test); or a file that torch.save has "
        "written, with a graph or a list of graphs",
    )
    predict.add_argument("--out", metavar="FILE", help="CSV file to write (default: standard output)")


def add_report(commands: Any) -> None:
    """The options of ``topomask report``."""
    report = commands.add_parser(
        "report", help="write an HTML file about a run, which opens without a network", allow_abbrev=False
    )
    report.add_argument("run", metavar="RUN", help="folder of a seed, or results folder with a single seed")
    _add_position(report)
    report.add_argument("--out", default="report.html", metavar="FILE", help="default: report.html")


def add_advise(commands: Any) -> None:
    """The options of ``topomask advise``."""
    advise = commands.add_parser(
        "advise",
        help="try every attention on a config's data, and print the time and memory that each takes",
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    advise.add_argument("source", metavar="DATASET|CONFIG", help="name of a data set, such as ENZYMES, or a YAML file")
    advise.add_argument(
        "--attention", action="append", default=[], metavar="NAME", help="try only this one; may be repeated"
    )
    advise.add_argument(
        "--seconds", type=float, default=3.0, metavar="S", help="time for the trial of an attention (default: 3)"
    )
    advise.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
