"""GKAT on TU data sets with Errica et al.'s folds (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.2).

    python scripts/reproduce/gkat_tu.py --quick                    # a trial: 2 epochs of 1 fold, without D&D
    python scripts/reproduce/gkat_tu.py --folds 0 1 2              # three outer folds, 1 run of each
    python scripts/reproduce/gkat_tu.py --full                     # ten folds, 3 runs of each, as published
    python scripts/reproduce/gkat_tu.py --epochs nci1=100 dd=100   # these two for fewer epochs than the 1,000 published
    python scripts/reproduce/gkat_tu.py --datasets imdb-binary imdb-multi reddit-binary reddit-multi-5k collab

Runs the configs of ``configs/gkat``. Graphs and folds are read from $TOPOMASK_DATA; for social graphs, the folds are
those with degrees as features, as in the paper's comparison. The same command continues an interrupted run. A report
keeps the rows of earlier runs with the same folds and seeds. Data that cannot be found or downloaded are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from _folds import errica_fold
from _gkat import finish, parser, row_of, with_earlier, write_report
from _gkat import lines as lines
from _gkat import plot as plot
from _tables import positive, read_curve, read_options, start

from pyg_topomask.run import RunError, run_config
from pyg_topomask.run.errors import MissingDataError

CONFIGS = Path(__file__).parents[2] / "configs" / "gkat"
PUBLISHED = {
    "proteins": "75.8 ± 3.8",
    "enzymes": "69.7 ± 6.0",
    "nci1": "75.2 ± 2.4",
    "dd": "78.6 ± 3.4",
    "imdb-binary": "71.4 ± 2.6",
    "imdb-multi": "47.5 ± 4.5",
    "reddit-binary": "89.3 ± 2.3",
    "reddit-multi-5k": "55.3 ± 1.6",
    "collab": "73.1 ± 2.0",
}


def main() -> None:
    """Run the folds of each data set."""
    made = parser(__doc__, "gkat_tu", seeds=1)
    names = list(PUBLISHED)
    made.add_argument(
        "--datasets",
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"some of {names}; default: the first four, or without dd for a trial",
    )
    made.add_argument("--folds", nargs="+", type=int, choices=range(10), default=[0, 1, 2], help="outer folds")
    made.add_argument("--epochs", nargs="+", type=limit, default=[], metavar="NAME=N", help="at most N of 1,000 epochs")
    made.add_argument("--full", action="store_true", help="ten folds, 3 runs of each; overrides --folds and --seeds")
    options = read_options(made)
    if options.datasets is None:
        options.datasets = [name for name in names[:4] if not (options.quick and name == "dd")]  # walks take minutes
    folds, seeds, epochs = options.folds, options.seeds, dict(options.epochs)
    if options.full:
        folds, seeds = list(range(10)), 3
    if options.quick:
        folds, seeds, epochs = [0], 1, dict.fromkeys(options.datasets, 2)
    rows: list[dict[str, Any]] = []
    settings = {"folds": folds, "seeds": seeds}
    for name in options.datasets:
        try:
            runs = [averaged(run_fold(name, fold, seeds, epochs.get(name), options.out)) for fold in folds]
        except MissingDataError as error:
            print(f"{name} is left out: {error}")
            continue
        row = row_of(name.upper(), "GKAT", PUBLISHED[name], runs)
        rows.append(row | {"most_epochs": epochs.get(name)})
        table = with_earlier(options.out / "gkat_tu.json", settings, rows)
        note = f"Outer folds {', '.join(map(str, folds))}, each the mean of {seeds} run(s); test accuracy at the best "
        note += "validation, mean and standard deviation of the sample over folds. "
        note += "Seconds are wall time, evaluation included."
        shorter = [f"{row['title']} {row['most_epochs']}" for row in table if row["most_epochs"]]
        if shorter:
            note += f" Largest number of epochs instead of 1,000: {', '.join(shorter)}."
        write_report("gkat_tu", table, note, options, settings)
    if not rows:
        raise RunError("none of the data sets was found")
    finish("gkat_tu", options)


def limit(text: str) -> tuple[str, int]:
    """A data set and its largest number of epochs, from ``NAME=N``."""
    name, _, most = text.partition("=")
    if name not in PUBLISHED:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N with one of the data sets, such as nci1=100")
    return name, positive(most)


def run_fold(name: str, fold: int, seeds: int, epochs: int | None, out: Path) -> list[dict[str, Any]]:
    """The runs of one fold; finished ones are read from their files."""
    overrides = [*errica_fold(name, fold), f"name_tag=fold{fold}" + (f"-{epochs}epochs" if epochs else "")]
    if epochs is not None:
        overrides.append(f"optim.max_epoch={epochs}")
    summary = run_config(CONFIGS / f"{name}.yaml", out / "runs", seeds, overrides)
    runs = []
    for number, seed in enumerate(summary["seeds"][:seeds]):  # the folder may have more, of an earlier call
        seconds, done = summary["wall_time_s"]["values"][number], summary["epochs"][number]
        curve = read_curve(Path(summary["folder"]) / str(seed), "accuracy", seconds / done)
        accuracy = summary["metrics"]["test_accuracy"]["values"][number]
        runs.append({"accuracy": accuracy, "epochs": done, "seconds": seconds, "curve": curve})
        runs[-1]["parameters"] = summary["num_parameters"]
    return runs


def averaged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a fold as in Errica et al.: the mean of its runs, with the curve of the first."""
    return runs[0] | {key: fmean(run[key] for run in runs) for key in ("accuracy", "epochs", "seconds")}


if __name__ == "__main__":
    start(main)
