"""The efficiency figure of the k-MIP paper: time and memory over N, compared with full attention.

Setting of the paper: N = 10^(i/2) nodes for i ≥ 4, d_k = 10, k = 10, one head; forward (inference), forward and
backward (training), peak memory, and the share of each stage. Full attention is PyTorch's fused kernel. Its memory is
also linear, and less than that of k-MIP because it stores no indices, but it takes much more time. Every size runs in a
new process. A method stops before a size at which one call would take longer than the limit.

Run: python scripts/reproduce/kmip_scaling.py [--quick | --results docs/results] [--limit 60]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from _bench import described, exponent, in_fresh_process, machine, median_ms, pyplot, save_json, save_plot
from _tables import read_options, start, table_parser, write_table
from kmip import DATA, TOPK, forward, full, inputs, stages, step

from pyg_topomask.ops import topk_attention
from pyg_topomask.run.process_memory import peak_mib
from pyg_topomask.viz.drawing import PALETTE

METHODS = ("k-MIP", "full")
QUANTITIES = ("forward ms", "training ms", "forward MiB", "training MiB")


def measure(method: str, kind: str, num_nodes: int, what: str) -> float:
    """Milliseconds or MiB of one call."""
    tensors = inputs(kind, num_nodes)
    attend = full if method == "full" else lambda *x: topk_attention(*x, TOPK)
    call = forward if what.startswith("forward") else step
    warm = inputs(kind, 200)
    call(attend, warm)  # load libraries and start threads
    if what.endswith("MiB"):
        return peak_mib(lambda: call(attend, tensors))
    repeats = 5 if num_nodes <= 10_000 else 3 if num_nodes <= 100_000 else 1
    return median_ms(lambda: call(attend, tensors), repeats, int(repeats > 1))


def sweep(method: str, kind: str, sizes: list[int], limit: float) -> list[dict[str, Any]]:
    """Rows of one method on one data set, within the limit; a quantity beyond it is :obj:`None`."""
    rows: list[dict[str, Any]] = []
    stopped: set[str] = set()
    for num_nodes in sizes:
        row: dict[str, Any] = {"num_nodes": num_nodes}
        for what in QUANTITIES:
            skip = what.split()[0] in stopped
            row[what] = None if skip else in_fresh_process(measure, method, kind, num_nodes, what)
        for phase in ("forward", "training"):
            if (row[f"{phase} ms"] or 0) / 1e3 * 10 > limit:  # the next N is √10 times this one, its square 10 times
                stopped.add(phase)
        rows.append(row)
        print(f"{method:6s} {kind:9s} N {num_nodes:9,d} " + "  ".join(_cell(row, what) for what in QUANTITIES))
        if len(stopped) == 2:
            break
    return rows


def _cell(row: dict[str, Any], what: str) -> str:
    return f"{what} {_figure(row[what], '.1f'):>9s}"


def fit(rows: list[dict[str, Any]], what: str, smallest: int) -> float | None:
    """Exponent of N over the sizes from ``smallest``; None if there are fewer than two."""
    known = [(row["num_nodes"], row[what]) for row in rows if row["num_nodes"] >= smallest and (row[what] or 0) > 0]
    return exponent(*map(list, zip(*known))) if len(known) > 1 else None


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Wall time and peak memory of one call. Exponents are fitted from "
        f"{report['exponents from N']:,} nodes on."
    )
    yield ""
    yield "| method | nodes | " + " | ".join(QUANTITIES) + " |"
    yield "|---|--:|" + "--:|" * len(QUANTITIES)
    for name, rows in report["rows"].items():
        for row in rows:
            yield (
                f"| {name} | {row['num_nodes']:,} | "
                + " | ".join(_figure(row[what], ".1f") for what in QUANTITIES)
                + " |"
            )
        slopes = report["exponents"][name]
        yield f"| {name} | exponent | " + " | ".join(_figure(slopes[what], ".2f") for what in QUANTITIES) + " |"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Draw time and memory over N on logarithmic axes, and the stages as bars."""
    figure, axes = pyplot().subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    for axis, what in zip(axes, ("forward ms", "training ms", "training MiB")):
        for color, (name, rows) in zip(PALETTE, report["rows"].items()):
            known = [(row["num_nodes"], row[what]) for row in rows if row[what]]
            slope = report["exponents"][name][what]
            label = name if slope is None else f"{name}, slope {slope:.2f}"
            axis.loglog(*zip(*known), "o-", color=color, label=label)
        axis.set(xlabel="nodes N", ylabel=what, ylim=(None, 300 * axis.get_ylim()[1]))  # room for the legend
        axis.legend(loc="upper left")
    parts = report["stages"]
    bottom = [0.0] * len(parts)
    for color, stage in zip(PALETTE, next(iter(parts.values()))):
        values = [part[stage] for part in parts.values()]
        axes[3].bar(list(parts), values, bottom=bottom, color=color, label=stage)
        bottom = [a + b for a, b in zip(bottom, values)]
    axes[3].set(ylabel="ms", title=f"stages at N = {report['stage nodes']:,}")
    axes[3].legend(loc="upper left", bbox_to_anchor=(1, 1))
    save_plot(figure, path)


def main() -> None:
    parser = table_parser(__doc__ or "", "kmip_scaling", "sizes up to 10,000")
    parser.add_argument("--limit", type=float, default=60.0, help="largest time of one call in seconds")
    parser.add_argument("--largest", type=float, help="exponent of ten of the largest N (6, or 4 with --quick)")
    options = read_options(parser)
    largest = options.largest or (4.0 if options.quick else 6.0)
    sizes = [round(10 ** (i / 2)) for i in range(4, int(2 * largest) + 1)]
    runs: dict[str, Callable[[], list[dict[str, Any]]]] = {
        **{f"k-MIP, {kind}": lambda kind=kind: sweep("k-MIP", kind, sizes, 10 * options.limit) for kind in DATA},
        "full": lambda: sweep("full", "gauss", sizes, options.limit),
    }
    rows = {name: run() for name, run in runs.items()}
    smallest = min(31_623, sizes[-1] // 10)  # below, memory is a few MiB, partly held by the allocator already
    exponents = {name: {what: fit(some, what, smallest) for what in QUANTITIES} for name, some in rows.items()}
    stage_nodes = min(31_623, sizes[-1])
    report = {
        "machine": machine(),
        "torch threads": torch.get_num_threads(),
        "rows": rows,
        "exponents": exponents,
        "exponents from N": smallest,
        "stage nodes": stage_nodes,
        "stages": {kind: in_fresh_process(stages, kind, stage_nodes) for kind in DATA},
    }
    for kind, parts in report["stages"].items():
        print(f"stages, {kind}, N = {stage_nodes:,}, ms:", {stage: round(time, 1) for stage, time in parts.items()})
    for name, slopes in exponents.items():
        print(f"{name:16s} exponents", {what: value and round(value, 2) for what, value in slopes.items()})
    save_json(options.out / "kmip_scaling.json", report)
    write_table(options, "kmip_scaling", "\n".join(lines(report)) + "\n")
    plot(report, options.out / "kmip_scaling.png")


if __name__ == "__main__":
    start(main)
