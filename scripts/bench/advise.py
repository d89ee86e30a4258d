"""Predictions of `topomask advise`, compared with runs, on six data sets with two attentions each.

A prediction is followed at once by a run of a few epochs in a new process. Times of an epoch and peaks of memory are
compared. Times are wall time, so that only a machine without other programs gives meaningful ones.

Run: TOPOMASK_DATA=... python scripts/bench/advise.py [--quick] [--datasets ENZYMES ...] [--out results/bench]
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from _measure import CONFIGS, bench_parser, described, in_fresh_process, machine, markdown, save_json
from runner import Watch, watched_run

from pyg_topomask.run.commands.advise import advise, candidates
from pyg_topomask.run.graphgps.config.load import load

DATASETS = ("ENZYMES", "PROTEINS", "NCI1", "peptides-func", "Cora", "CiteSeer")
ATTENTIONS = ("GRF", "Transformer")
TOLERANCE = 0.3
KEYS = {"epoch_s": "s/epoch", "total_mib": "MiB", "step_mib": "MiB of training alone"}


def settings_of(name: str) -> list[str]:
    """Settings for a data set: Peptides-func is the sample of 500 graphs if the folder has it."""
    sample = Path(os.environ.get("TOPOMASK_DATA", "")) / "LRGB-sample"
    return [f"dataset.dir={sample}"] if name == "peptides-func" and sample.is_dir() else []


def measured(path: Path, settings: list[str], epochs: int) -> dict[str, float]:
    """Costs of a run of some epochs: seconds per epoch without the first, and memory in MiB."""
    watch = Watch(time.perf_counter)
    found = watched_run(path, epochs, watch, ["train.ckpt_period=100", *settings])
    return {**found, "epoch_s": (watch.starts[-1] - watch.starts[1]) / (len(watch.starts) - 2)}


def compare(name: str, attention: str, seconds: float, epochs: int) -> dict[str, Any]:
    """Prediction and measurement for one data set and attention."""
    path, extra = CONFIGS / "grf" / f"{name.lower()}.yaml", settings_of(name)
    trial = advise(str(path), [attention], seconds, extra)[attention]
    if trial.problem:
        raise SystemExit(f"{name}, {attention}: {trial.problem}")
    settings = candidates(load(path).config, [attention])[attention]
    return {"predicted": vars(trial), "measured": in_fresh_process(measured, path, [*extra, *settings], epochs)}


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown: predicted, measured and their ratio."""
    cells = []
    for name, row in rows.items():
        pairs = ((row["predicted"][key], row["measured"][key], 0 if "mib" in key else 2) for key in KEYS)
        texts = (f"{ours:.{digits}f} / {real:.{digits}f} ({ours / real:.2f})" for ours, real, digits in pairs)
        cells.append([*name.split(", "), *texts])
    return list(markdown(" | ".join(["data set", "attention", *(f"{text}:" for text in KEYS.values())]), cells))


def main() -> None:
    """Compare all, print a table, and say which predictions are off by more than 30 %."""
    made = bench_parser(__doc__, "one attention, and two data sets")
    made.add_argument("--datasets", nargs="+", default=DATASETS)
    made.add_argument("--attentions", nargs="+", default=ATTENTIONS)
    made.add_argument("--seconds", type=float, default=3.0, help="time for each trial")
    made.add_argument("--epochs", type=int, default=8, help="epochs of each run; the first and the last do not count")
    options = made.parse_args()
    datasets, attentions = options.datasets, options.attentions
    if options.quick:
        datasets, attentions = datasets[:2], attentions[:1]
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "seconds": options.seconds, "rows": {}}
    for name in datasets:
        for attention in attentions:
            report["rows"][f"{name}, {attention}"] = compare(name, attention, options.seconds, options.epochs)
            print(table(report["rows"])[-1], flush=True)
    save_json(options.out / "advise.json", report)
    print(described(report["machine"]), *table(report["rows"]), sep="\n")
    for key, text in KEYS.items():
        ratios = {name: row["predicted"][key] / row["measured"][key] for name, row in report["rows"].items()}
        off = [name for name, ratio in ratios.items() if abs(ratio - 1) > TOLERANCE]
        line = f"{text}: {len(ratios) - len(off)} of {len(ratios)} within {TOLERANCE:.0%}"
        print(line + (f"; not {'; '.join(off)}" if off else ""))


if __name__ == "__main__":
    main()
