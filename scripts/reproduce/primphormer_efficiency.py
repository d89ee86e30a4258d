"""Table 4 of the Primphormer paper: seconds per epoch and peak memory of attentions in one GraphGPS stack.

The stack has GatedGCN and one attention per layer, with the paper's layers, widths and batch sizes. An epoch is the
median training step times the steps of the training set; peak memory is that of a step. The methods are measured in
turns, each time in a new process, and the table has the median of these rounds, so that other work on the machine
affects all methods. The batch has real graphs for Peptides-func, and random graphs of about the published sizes for the
other data sets. The paper measured on a GPU, so only ratios to the Transformer can be compared; the table shows them.
ogbn-products, which the paper cuts into ten random parts, is left out, because the Transformer runs out of memory on
it; the part "large" of scripts/bench/attention.py is similar. The same command continues an interrupted one.

Run: python scripts/reproduce/primphormer_efficiency.py [--quick | --results docs/results]
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from _bench import described, draw_lines, in_fresh_process, machine, markdown, resumed, save_json
from _tables import finish, read_options, start, table_parser
from attention import measure

DATASETS = ("CIFAR10", "MalNet-Tiny", "PascalVOC-SP", "Peptides-func")
PUBLISHED = {
    "none": ((20.3, 24.5, 15.7, 4.8), (2.31, 1.92, 4.18, 2.45)),
    "Transformer": ((28.0, 232.4, 35.6, 12.8), (3.81, 35.32, 7.82, 8.46)),
    "BigBird": ((55.2, 325.6, 52.3, 51.9), (2.81, 2.71, 4.99, 4.99)),
    "Performer": ((50.8, 73.5, 49.7, 21.7), (10.5, 11.59, 6.14, 7.71)),
    "Primal": ((32.1, 62.5, 25.7, 7.9), (2.74, 2.58, 4.74, 3.38)),
    "Exphormer": ((44.5, 62.1, 35.2, 7.6), (5.54, 10.38, 7.35, 4.81)),
    "Primphormer": ((32.6, 61.9, 25.3, 7.7), (2.74, 2.86, 4.72, 3.41)),
}
"""Method -> seconds per epoch and peak GB on each of DATASETS; "none" is the stack without attention."""


def measured(path: Path, rounds: int, repeats: int, datasets: list[str]) -> dict[str, Any]:
    """The report: a list of rounds by data set and method. Rounds of an earlier, interrupted run are read from it."""
    report = resumed(path, {"machine": machine(), "repeats": repeats}, "rows")
    for dataset in datasets:
        rows = report["rows"].setdefault(dataset, {})
        for number in range(rounds):
            for method in PUBLISHED:
                if len(rows.setdefault(method, [])) <= number:
                    rows[method].append(in_fresh_process(measure, dataset, method, repeats, "GatedGCN"))
                    save_json(path, report)
    return report


def typical(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Method -> median over the rounds of seconds per epoch and of a step's peak memory in MiB."""
    keys = ("epoch_s", "step_mib")
    return {method: {key: median(row[key] for row in found) for key in keys} for method, found in rows.items()}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Our figures and the paper's, and both as multiples of the Transformer's."""
    where = described(report["machine"])
    rounds = len(next(iter(report["rows"].values()))["Transformer"])
    yield (
        f"{where}. The methods take turns in {rounds} rounds, and each figure is the median of its rounds. In a round, "
        f"an epoch is the median of {report['repeats']} steps on one batch, times the steps of an epoch."
    )
    yield ""
    cells = []
    for dataset, found in report["rows"].items():
        rows, column = typical(found), DATASETS.index(dataset)
        for method, row in rows.items():
            cells.append([dataset, "MPNN only" if method == "none" else method])
            for kind, (key, form) in enumerate((("epoch_s", ".1f"), ("step_mib", ".0f"))):
                theirs, their_base = (PUBLISHED[name][kind][column] for name in (method, "Transformer"))
                cells[-1] += [format(row[key], form), f"{row[key] / rows['Transformer'][key]:.2f}"]
                cells[-1] += [theirs, f"{theirs / their_base:.2f}"]
    head = "data set | method | s/epoch: | of Transformer: | published: | of Transformer: | MiB: | of Transformer:"
    yield from markdown(f"{head} | published GB: | of Transformer:", cells)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Draw times as multiples of the Transformer's, ours and the paper's."""
    panels = {}
    for dataset, found in report["rows"].items():
        rows, column = typical(found), DATASETS.index(dataset)
        base, their_base = rows["Transformer"]["epoch_s"], PUBLISHED["Transformer"][0][column]
        paper = [(name, PUBLISHED[name][0][column] / their_base) for name in rows]
        panels[dataset] = {"here": [(name, row["epoch_s"] / base) for name, row in rows.items()], "paper, GPU": paper}
    draw_lines(panels, path, "", "seconds per epoch, Transformer = 1", "y", columns=2)


def main() -> None:
    parser = table_parser(__doc__, "primphormer_efficiency", "only Peptides-func, one timed step")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, help="default: all, or Peptides-func with --quick")
    options = read_options(parser)
    datasets = options.datasets or (["Peptides-func"] if options.quick else list(DATASETS))
    rounds, repeats = (1, 1) if options.quick else (3, 9)  # timed steps in a round
    report = measured(options.out / f"{options.name}.json", rounds, repeats, datasets)
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
