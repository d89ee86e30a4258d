"""Ablations that no paper has: auxiliary loss and rank of Primphormer, walks and features of GKAT, k of k-MIP.

    python scripts/reproduce/ablations.py --quick                            # a trial
    python scripts/reproduce/ablations.py --datasets enzymes                 # 3 folds; half an hour on one core
    python scripts/reproduce/ablations.py                                    # ENZYMES and PROTEINS
    python scripts/reproduce/ablations.py --datasets peptides-func --methods k-MIP    # on a tenth of the graphs

Within a method, one setting changes at a time; the rest is as in the first row. Primphormer and k-MIP have message
passing in each layer, too, with the settings of configs/primphormer and configs/kmip. GKAT is alone in its layers, with
the settings of configs/grf and 50 walks of each node. GKAT-0 is the exact softmax kernel under the same mask. All rows
of a data set have equal epochs and folds. On ENZYMES and PROTEINS, run i has Errica et al.'s outer fold i with its
inner split, and seed i; on Peptides-func, run i has seed i and its own random tenth of the graphs. The epoch is chosen
on the validation part. No setting is chosen, and no choice looks at the test part.
The same command continues an interrupted one and keeps finished runs. Seconds of a run that was interrupted count from
its last start.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _tables import (
    CONFIGS,
    MISSING,
    described,
    format_metric,
    machine,
    plot_runs,
    save_json,
    table_parser,
    write_table,
)  # isort: split

from _measure import resumed  # in a folder that _tables adds to the path
from scipy import stats

from pyg_topomask.run import RunError, check_config, run_config


@dataclass(frozen=True)
class Method:
    """The rows of one method.

    Args:
        folder: Folder of its configs.
        rows: Row -> settings; the others are compared with the first. ``{conv}`` is the data set's message passing.
    """

    folder: str
    rows: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Args:
        epochs: Number of epochs.
        metric: Metric of the test part.
        conv: Message passing of its configs.
        most_nodes: Number of nodes of its largest graph.
    """

    epochs: int
    metric: str
    conv: str
    most_nodes: int


def _gkat(hops: int, features: int | None = None) -> list[str]:
    kernel = ["kernel=softmax"] if features is None else ["kernel=softmax_rf", f"num_features={features}"]
    walks = [f"max_length={hops}", "num_walks=50", "halt_prob=0.0", "independent=false", "pair_table=false"]
    return ["gt.layer_type=None+GKAT", *(f"topomask.{setting}" for setting in (*kernel, *walks))]


METHODS = {
    "Primphormer": Method(
        "primphormer",
        {
            "eta 0.1, rank 30": [],
            "eta 0": ["topomask.eta=0"],
            "eta 0.01": ["topomask.eta=0.01"],
            "eta 1": ["topomask.eta=1"],
            "rank 10": ["topomask.rank=10"],
            "rank 50": ["topomask.rank=50"],
            "no attention": ["gt.layer_type={conv}+None"],
        },
    ),
    "GKAT": Method(
        "grf",
        {
            "3 hops, GKAT-0": _gkat(3),
            "1 hop": _gkat(1),
            "2 hops": _gkat(2),
            "6 hops": _gkat(6),
            "4 features": _gkat(3, 4),
            "16 features": _gkat(3, 16),
            "64 features": _gkat(3, 64),
            "no mask": ["gt.layer_type=None+Transformer"],
        },
    ),
    "k-MIP": Method(
        "kmip",
        {
            "all keys": ["gt.sparse.k={most_nodes}"],
            "k = 1": ["gt.sparse.k=1"],
            "k = 5": ["gt.sparse.k=5"],
            "k = 15": ["gt.sparse.k=15"],
            "no attention": ["gt.layer_type={conv}+None"],
        },
    ),
}

DATASETS = {
    "enzymes": DataSet(40, "accuracy", "GIN", 126),
    "proteins": DataSet(25, "accuracy", "GIN", 620),
    "peptides-func": DataSet(15, "ap", "CustomGatedGCN", 444),
}

TENTH = "[1087,233,233]"
"""Graphs of each part of a tenth of Peptides-func."""


def settings_of(dataset: str, method: str, row: str, run: int, epochs: int) -> list[str]:
    """Overrides of a config for one run."""
    data = DATASETS[dataset]
    optim = check_config(CONFIGS / METHODS[method].folder / f"{dataset}.yaml")[0].config.optim
    warmup = min(round(optim.num_warmup_epochs * epochs / optim.max_epoch), epochs - 1)
    changed = [setting.format(conv=data.conv, most_nodes=data.most_nodes) for setting in METHODS[method].rows[row]]
    split = ["split_mode=random", f"split={TENTH}"] if dataset == "peptides-func" else ["split_mode=errica"]
    if dataset != "peptides-func":
        split.append(f"split_index={run}")
    tag = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in f"{method}-{row}-{epochs}-{run}")
    return [
        *changed,
        *(f"dataset.{setting}" for setting in split),
        f"seed={run}",
        f"optim.max_epoch={epochs}",
        f"optim.num_warmup_epochs={warmup}",
        f"name_tag={tag}",
    ]


def run_once(dataset: str, method: str, row: str, run: int, options: argparse.Namespace) -> dict[str, Any]:
    """Results of one run."""
    data = DATASETS[dataset]
    path = CONFIGS / METHODS[method].folder / f"{dataset}.yaml"
    epochs = options.epochs or data.epochs
    begin = time.process_time()
    summary = run_config(path, options.out / "runs", 1, settings_of(dataset, method, row, run, epochs))
    seconds = time.process_time() - begin
    found = {part: summary["metrics"][f"{part}_{data.metric}"]["values"][0] for part in ("val", "test")}
    return found | {"seconds": seconds, "parameters": summary["num_parameters"], "epochs": epochs}


def difference(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Mean difference to the first row in per cent, with the 95 % interval of the paired t-test over their runs."""
    pairs = list(zip(row["test"], first["test"]))
    if row is first or not pairs:
        return "–"
    gaps = [100 * (own - other) for own, other in pairs]
    mean = f"{statistics.fmean(gaps):+.1f}"
    if len(gaps) < 2 or max(gaps) == min(gaps):
        return mean
    low, high = stats.ttest_1samp(gaps, 0.0).confidence_interval(0.95)
    return f"{mean} ({low:+.1f} to {high:+.1f})"


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Validation and test results after the epoch of the best validation result: "
        "mean and standard deviation of the sample over runs. A run is an outer fold of Errica et al. with its inner "
        "split, or a seed with its own tenth of Peptides-func. The difference is to the method's first row, in "
        "percentage points with the 95 % interval of the paired t-test over runs. Settings are swept, not tuned. "
        "Minutes are processor time of a run."
    )
    yield ""
    yield "| data set | method | row | parameters | runs | epochs | minutes | metric | validation | test | difference |"
    yield "|---|---|---|--:|--:|--:|--:|---|--:|--:|--:|"
    rows = report["rows"].values()
    for row in rows:
        first = next(r for r in rows if (r["dataset"], r["method"]) == (row["dataset"], row["method"]))
        metric, number = DATASETS[row["dataset"]].metric, len(row["test"])
        cells = [row["dataset"], row["method"], row["row"], f"{row['parameters'][0]:,}", number, row["epochs"][0]]
        cells += [f"{statistics.fmean(row['seconds']) / 60:.1f}", metric]
        for part in ("val", "test"):
            spread = statistics.stdev(row[part]) if number > 1 else None
            cells.append(format_metric(metric, statistics.fmean(row[part]), spread))
        yield "| " + " | ".join(map(str, [*cells, difference(row, first)])) + " |"


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test results of all runs, with a panel for each data set and method."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"].values():
        panels.setdefault(f"{row['dataset']}, {row['method']}", {})[row["row"]] = row["test"]
    plot_runs(panels, "test result", path)


def fill(report: dict[str, Any], dataset: str, run: int, options: argparse.Namespace) -> None:
    """Make one run of every row. Write the report after each."""
    for method in options.methods:
        for name in METHODS[method].rows:
            start = {"dataset": dataset, "method": method, "row": name}
            row = report["rows"].get(f"{dataset}, {method}: {name}", start)
            if len(row.get("test", [])) > run:
                continue
            for key, value in run_once(dataset, method, name, run, options).items():
                row.setdefault(key, []).append(value)
            report["rows"][f"{dataset}, {method}: {name}"] = row
            save_json(options.out / "ablations.json", report)
            write_table(options, "ablations", "\n".join(lines(report)) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the first run of every row, then the second, and so on. Write a plot at the end."""
    made = table_parser(__doc__ or "", "ablations", "2 epochs, 1 run")
    made.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=["enzymes", "proteins"])
    made.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    made.add_argument("--runs", type=int, default=3, help="folds or seeds of each row, at most 10 folds")
    made.add_argument("--epochs", type=int, help="epochs of each run, instead of those of the data set")
    options = made.parse_args(arguments)
    if options.quick:
        options.runs, options.epochs = 1, 2
    settings = {"machine": machine(), "quick": options.quick, "epochs": options.epochs}
    report = resumed(options.out / "ablations.json", settings, "rows")
    for dataset in options.datasets:
        try:
            for run in range(options.runs):
                fill(report, dataset, run, options)
        except RunError as error:
            if MISSING not in str(error):
                raise
            print(f"{dataset} is left out: {error}")
    plot(report, options.out / "ablations.png")
    print("\n".join(lines(report)))


if __name__ == "__main__":
    main()
