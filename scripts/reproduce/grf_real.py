"""What a mask of graph random features adds on real graphs: attention without message passing (Reid et al. 2024).

    python scripts/reproduce/grf_real.py --quick                              # a trial
    python scripts/reproduce/grf_real.py --datasets cora enzymes
    python scripts/reproduce/grf_real.py                                      # all rows, 3 seeds

Layers are attention alone, or message passing alone, with the settings of configs/grf/<data set>.yaml. The paper has no
figures for these data sets. Each method is trained twice: for an equal number of epochs, and for as many epochs as take
the time of the GRF row, with the schedule planned for them. Epochs are chosen on the validation part, and no setting on
the test part. Without a mask or message passing, a layer knows of the graph only what the features tell.
The same command continues an interrupted one, and keeps finished runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _tables import CONFIGS, MISSING, described, format_metric, machine, save_json, table_parser, write_table

from pyg_topomask.run import RunError, check_config, run_config

EPOCHS = {"cora": 80, "citeseer": 80, "enzymes": 40, "proteins": 25, "peptides-func": 10}
"""Data set -> epochs of the first comparison."""

CONVS = {"cora": "GCN", "citeseer": "GCN", "enzymes": "GIN", "proteins": "GIN", "peptides-func": "CustomGatedGCN"}
"""Data set -> its message passing."""

FIXED_LENGTH = ["topomask.halt_prob=0.0", "topomask.independent=false", "topomask.pair_table=false"]
METHODS: dict[str, list[str]] = {
    "GRF": ["gt.layer_type=None+GRF"],
    "linear": ["gt.layer_type=None+Linear"],
    "GKAT": ["gt.layer_type=None+GKAT", "topomask.kernel=softmax", *FIXED_LENGTH],
    "softmax": ["gt.layer_type=None+Transformer"],
    "message passing": [],
}
"""Settings of each row; GRF comes first, because its time is that of the second comparison."""

PARTS = ("epochs", "time")


def run(dataset: str, method: str, epochs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Results of one method after a number of epochs."""
    path = CONFIGS / "grf" / f"{dataset}.yaml"
    optim = check_config(path)[0].config.optim
    settings = METHODS[method] or [f"gt.layer_type={CONVS[dataset]}+None"]
    warmup = round(optim.num_warmup_epochs * epochs / optim.max_epoch)
    settings = [*settings, f"optim.max_epoch={epochs}", f"optim.num_warmup_epochs={min(warmup, epochs - 1)}"]
    tag = f"name_tag={method.replace(' ', '-')}-{epochs}" + ("-quick" if options.quick else "")
    seconds = processor_time(path, options, [*settings, tag])
    summary = run_config(path, options.out / "runs", options.seeds, [*settings, tag])
    metric = "ap" if dataset == "peptides-func" else "accuracy"
    return {
        "metric": metric,
        "test": summary["metrics"][f"test_{metric}"],
        "val": summary["metrics"][f"val_{metric}"],
        "parameters": summary["num_parameters"],
        "epochs": epochs,
        "seconds": seconds,
        "seconds_per_epoch": seconds / summary["epochs"][0],
    }


def processor_time(path: Path, options: argparse.Namespace, settings: Sequence[str]) -> float:
    """Seconds of processor time of the first seed's run, which other programs do not lengthen; stored when it ends."""
    stored = options.out / f"seconds-{path.stem}-{settings[-1].removeprefix('name_tag=')}.json"
    if not stored.is_file():
        begin = time.process_time()
        run_config(path, options.out / "runs", 1, settings)
        save_json(stored, {"seconds": time.process_time() - begin})
    return float(json.loads(stored.read_text())["seconds"])


def run_row(dataset: str, method: str, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """Both results of one method on one data set; ``seconds`` is the time of the GRF row."""
    row = {"dataset": dataset, "method": method}
    try:
        first = run(dataset, method, options.epochs or EPOCHS[dataset], options)
    except RunError as error:
        if MISSING not in str(error):
            raise
        print(f"{dataset}: {error}")
        return row | {"note": "not available here"}
    if method == "GRF":
        return row | {"by": {"epochs": first, "time": first}}
    most = 3 if options.quick else 10 * first["epochs"]
    epochs = min(most, max(2, round(seconds / first["seconds_per_epoch"])))
    return row | {"by": {"epochs": first, "time": run(dataset, method, epochs, options)}}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    rows: Sequence[Mapping[str, Any]] = report["rows"]
    yield (
        f"{described(report['machine'])}. Test figures (%) after the epoch of the best validation result; "
        f"{report['seeds']} seed(s). Minutes are processor time of the first seed."
    )
    yield ""
    yield "| data set | layers | parameters | epochs | minutes | test, equal epochs | epochs | test, time of GRF |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        if "note" in row:
            yield f"| {row['dataset']} | {row['method']} | {row['note']} | | | | | |"
            continue
        first, second = (row["by"][part] for part in PARTS)
        figures = [
            format_metric(part["metric"], part["test"]["mean"], part["test"]["std"] if report["seeds"] > 1 else None)
            for part in (first, second)
        ]
        cells = [row["dataset"], row["method"], f"{first['parameters']:,}", first["epochs"]]
        cells += [f"{first['seconds'] / 60:.1f}", figures[0], second["epochs"], figures[1]]
        yield "| " + " | ".join(map(str, cells)) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every method on every data set. Write JSON and Markdown after each row."""
    made = table_parser(__doc__ or "", "grf_real", "2 epochs, 1 seed")
    made.add_argument("--datasets", nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    made.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="rows")
    made.add_argument("--seeds", type=int, default=3, help="runs of each row")
    made.add_argument("--epochs", type=int, help="epochs of the first comparison, instead of those of the data set")
    options = made.parse_args(arguments)
    if options.quick:
        options.seeds, options.epochs = 1, 2
    methods = [name for name in METHODS if name == "GRF" or name in options.methods]
    rows: list[dict[str, Any]] = []
    report = {"machine": machine(), "seeds": options.seeds, "rows": rows}
    for dataset in options.datasets:
        seconds = 0.0
        for method in methods:
            rows.append(run_row(dataset, method, seconds, options))
            if method == "GRF" and "by" in rows[-1]:
                seconds = rows[-1]["by"]["epochs"]["seconds"]
            save_json(options.out / "grf_real.json", report)
            text = "\n".join(lines(report)) + "\n"
            write_table(options, "grf_real", text)
    print(text)


if __name__ == "__main__":
    main()
