"""The efficiency figure of the k-MIP paper: time and memory over N, compared with full attention.

Setting of the paper: N = 10^(i/2) nodes for i ≥ 4, d_k = 10, k = 10, one head; forward (inference), forward and
backward (training), peak memory, and the share of each stage. Full attention is PyTorch's fused kernel. Its memory is
also linear, and less than that of k-MIP because it stores no indices, but it takes much more time. Every size runs in a
new process. Times are processor times. A method stops before a size at which one call would take longer than the limit.

Run: python scripts/reproduce/kmip_scaling.py [--quick | --results docs/results]
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _bench import described, draw_lines, exponent, in_fresh_process, machine, markdown, milliseconds
from _tables import finish, read_options, start, table_parser
from kmip import DATA, TOPK, forward, full, inputs, stages, step

from pyg_topomask.ops import topk_attention
from pyg_topomask.run.process_memory import peak_mib

LIMIT = 60.0
"""Seconds of a call of full attention; ten times as many for one of k-MIP."""
QUANTITIES = ("forward ms", "training ms", "forward MiB", "training MiB")
RATIOS = {"forward ratio": "forward ms", "training ratio": "training ms"}


def measure(method: str, kind: str, num_nodes: int, what: str) -> float:
    """Milliseconds of processor time, or MiB, of one call."""
    tensors = inputs(kind, num_nodes)
    attend = full if method == "full" else lambda *x: topk_attention(*x, TOPK)
    call = forward if what.startswith("forward") else step
    warm = inputs(kind, 200)
    call(attend, warm)  # load libraries and start threads
    if what.endswith("MiB"):
        return peak_mib(lambda: call(attend, tensors))
    repeats = 5 if num_nodes <= 10_000 else 3 if num_nodes <= 100_000 else 1
    return milliseconds(lambda: call(attend, tensors), repeats, int(repeats > 1))["cpu"]


def sweep(method: str, kind: str, sizes: list[int], limit: float) -> list[dict[str, Any]]:
    """Rows of one method on one data set, within the limit; a quantity beyond it is :obj:`None`."""
    rows: list[dict[str, Any]] = []
    stopped: set[str] = set()
    for num_nodes in sizes:
        row: dict[str, Any] = {"method": method if method == "full" else f"{method}, {kind}", "num_nodes": num_nodes}
        for what in QUANTITIES:
            skip = what.split()[0] in stopped
            row[what] = None if skip else in_fresh_process(measure, method, kind, num_nodes, what)
        for phase in ("forward", "training"):
            if (row[f"{phase} ms"] or 0) / 1e3 * 10 > limit:  # the next N is √10 times this one, its square 10 times
                stopped.add(phase)
        rows.append(row)
        cells = (f"{what} {_figure(row[what], '.1f'):>9s}" for what in QUANTITIES)
        print(f"{row['method']:16s} N {num_nodes:9,d} " + "  ".join(cells), flush=True)
        if len(stopped) == 2:
            break
    return rows


def by_method(report: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Method -> its rows."""
    methods = dict.fromkeys(row["method"] for row in report["rows"])
    return {method: [row for row in report["rows"] if row["method"] == method] for method in methods}


def fit(rows: list[dict[str, Any]], what: str, smallest: int) -> float | None:
    """Exponent of N over the sizes from ``smallest``; None if there are fewer than two."""
    known = [(row["num_nodes"], row[what]) for row in rows if row["num_nodes"] >= smallest and (row[what] or 0) > 0]
    return exponent(*map(list, zip(*known))) if len(known) > 1 else None


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Processor time and peak memory of one call, and the time of full attention "
        f"over that of k-MIP. Exponents are fitted from {report['exponents from N']:,} nodes on."
    )
    yield ""
    cells = []
    for name, rows in by_method(report).items():
        slopes = report["exponents"][name]
        for row in rows:
            ratios = (_figure(row.get(ratio), ".2f") for ratio in RATIOS)
            cells.append((name, f"{row['num_nodes']:,}", *(_figure(row[what], ".1f") for what in QUANTITIES), *ratios))
        cells.append((name, "exponent", *(_figure(slopes[what], ".2f") for what in QUANTITIES), "–", "–"))
    heads = [*QUANTITIES, *(f"full / k-MIP, {ratio.split()[0]}" for ratio in RATIOS)]
    yield from markdown(" | ".join(["method", "nodes:", *(f"{what}:" for what in heads)]), cells)
    yield f"\nMilliseconds of each stage at N = {report['stage nodes']:,}:\n"
    stages = report["stages"]
    rows = ((kind, *(f"{ms:.1f}" for ms in parts.values())) for kind, parts in stages.items())
    yield from markdown(" | ".join(["keys", *(f"{stage}:" for stage in next(iter(stages.values())))]), rows)


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Draw time and memory over N on logarithmic axes."""
    panels = {
        what: {
            name: [(row["num_nodes"], row[what]) for row in rows if row[what]]
            for name, rows in by_method(report).items()
        }
        for what in ("forward ms", "training ms", "training MiB")
    }
    draw_lines(panels, path, "nodes N", "", "xy")


def main() -> None:
    parser = table_parser(__doc__ or "", "kmip_scaling", "sizes up to 10,000")
    parser.add_argument("--largest", type=float, help="exponent of ten of the largest N (6, or 4 with --quick)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a call of full attention")
    options = read_options(parser)
    largest = options.largest or (4.0 if options.quick else 6.0)
    sizes = [round(10 ** (i / 2)) for i in range(4, int(2 * largest) + 1)]
    full_rows = sweep("full", "gauss", sizes, options.limit)
    rows = [row for kind in DATA for row in sweep("k-MIP", kind, sizes, 10 * options.limit)]
    for row, other in ((row, other) for row in rows for other in full_rows if row["num_nodes"] == other["num_nodes"]):
        row |= {ratio: other[what] and row[what] and other[what] / row[what] for ratio, what in RATIOS.items()}
    report: dict[str, Any] = {"machine": machine(), "quick": options.quick, "rows": rows + full_rows}
    smallest = min(31_623, sizes[-1] // 10)  # below, memory is a few MiB, partly held by the allocator already
    found = by_method(report).items()
    report["exponents"] = {name: {what: fit(some, what, smallest) for what in QUANTITIES} for name, some in found}
    report["exponents from N"], report["stage nodes"] = smallest, min(31_623, sizes[-1])
    report["stages"] = {kind: in_fresh_process(stages, kind, report["stage nodes"]) for kind in DATA}
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
