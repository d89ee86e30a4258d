"""Whether training under learned signs is smooth: the two denominators of attention under a GRF mask.

    python scripts/reproduce/grf_smooth.py --quick                    # a trial
    python scripts/reproduce/grf_smooth.py                            # 2 data sets, 5 seeds; 20 minutes on one core

Layers are attention alone, with relu features and a modulation function that may become negative: on digits as grids
of 8 × 8 pixels without encodings, and on ENZYMES. "bound" divides by the sums of the bounding mask, "signed" by those
of the mask itself, as in the paper. A run falls if its validation accuracy drops below half of its best so far; the
worst ratio of these two is in the table.
The same command continues an interrupted one, and keeps finished runs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from _tables import (
    CONFIGS,
    SPREAD,
    described,
    format_metric,
    machine,
    plot_runs,
    sample_std,
    save_json,
    table_parser,
    write_table,
)

from pyg_topomask.run import run_config

ROWS: dict[str, tuple[Path, int, list[str]]] = {
    "digits": (CONFIGS / "masked" / "digits-toeplitz.yaml", 10, ["topomask.mask=grf", "dataset.name=plain"]),
    "enzymes": (CONFIGS / "grf" / "enzymes.yaml", 25, ["gt.layer_type=None+GRF"]),
}
"""Data set -> its config, epochs and settings."""

QUICK = {"digits": ["dataset.split=[64,32,32]"], "enzymes": ["gt.layers=1"]}


def worst_fall(curve: Sequence[float]) -> float:
    """Smallest ratio of a value to the largest one until then; 1 if the curve never falls."""
    return min((value / best for value, best in zip(curve, accumulate(curve, max)) if best > 0), default=1.0)


def read_curve(run: Path) -> list[float]:
    """Validation accuracy by epoch."""
    with (run / "metrics.csv").open() as file:
        return [float(row["val_accuracy"]) for row in csv.DictReader(file)]


def run_row(dataset: str, normalizer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results under one denominator."""
    path, epochs, settings = ROWS[dataset]
    epochs = 2 if options.quick else epochs
    settings = [*settings, f"topomask.normalizer={normalizer}", f"optim.max_epoch={epochs}"]
    settings += [f"optim.num_warmup_epochs={min(2, epochs - 1)}", *(QUICK[dataset] if options.quick else [])]
    tag = f"name_tag=smooth-{dataset}-{normalizer}-{epochs}" + ("-quick" if options.quick else "")
    summary = run_config(path, options.out / "runs", options.seeds, [*settings, tag])
    falls = [worst_fall(read_curve(Path(summary["folder"]) / str(seed))) for seed in summary["seeds"]]
    return {
        "dataset": dataset,
        "normalizer": normalizer,
        "epochs": epochs,
        "test": summary["metrics"]["test_accuracy"],
        "falls": falls,
    }


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Test accuracy (%) after the epoch of the best validation accuracy; "
        f"{report['seeds']} seed(s). {SPREAD}"
    )
    yield ""
    yield "| data set | denominator | epochs | test accuracy | lowest | runs that fall by half | worst ratio |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for row in report["rows"]:
        mean, lowest = row["test"]["mean"], min(row["test"]["values"])
        figure = format_metric("accuracy", mean, sample_std(row["test"]["values"]))
        fallen = sum(ratio < 0.5 for ratio in row["falls"])
        cells = [row["dataset"], row["normalizer"], row["epochs"], figure, format_metric("accuracy", lowest)]
        cells += [f"{fallen} of {len(row['falls'])}", f"{min(row['falls']):.2f}"]
        yield "| " + " | ".join(map(str, cells)) + " |"


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracy of all runs."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"]:
        panels.setdefault(row["dataset"], {})[row["normalizer"]] = [100 * value for value in row["test"]["values"]]
    plot_runs(panels, "test accuracy (%)", path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train under both denominators. Write JSON and Markdown after each row."""
    made = table_parser(__doc__ or "", "grf_smooth", "2 epochs, 1 seed")
    made.add_argument("--datasets", nargs="+", choices=list(ROWS), default=list(ROWS))
    made.add_argument("--seeds", type=int, default=5, help="runs of each row")
    options = made.parse_args(arguments)
    options.seeds = 1 if options.quick else options.seeds
    rows: list[dict[str, Any]] = []
    report = {"machine": machine(), "seeds": options.seeds, "rows": rows}
    for dataset in options.datasets:
        for normalizer in ("bound", "signed"):
            rows.append(run_row(dataset, normalizer, options))
            save_json(options.out / "grf_smooth.json", report)
            text = "\n".join(lines(report)) + "\n"
            write_table(options, "grf_smooth", text)
    plot(report, options.out / "grf_smooth.png")
    print(text)


if __name__ == "__main__":
    main()
