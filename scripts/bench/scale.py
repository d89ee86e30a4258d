"""Every attention on one graph of growing size: exponents of time and memory, and the largest graph that fits.

A graph is a ring whose nodes are joined to the next two. Each attention, and linear attention under each mask, runs
forward and backward on it (C = 32, 4 heads) in a process of its own, with twice the nodes each time, until the next
size would need more than ``--gib`` or ``--seconds``. Exponents are fitted over the four largest sizes. An attention
fails the check if its exponent of time or memory exceeds that of its card by more than 0.15. The largest size that fits
is read off the fitted line if it was not reached. Transforms are not timed. A table is printed, and ``scale.json`` and
``scale.png`` are written.

Run: python scripts/bench/scale.py [--quick] [--only NAME …] [--gib 16] [--seconds 20] [--out results/bench]
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import _measure as bench
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask import nn, testing
from pyg_topomask.run.process_memory import keep_freed, peak_mib

CHANNELS, HEADS, SLACK, FITTED = 32, 4, 0.15, 4


CARDS = {name: cls.card for name, cls in nn.ATTENTION.items() if name != "Masked"}  # which is Linear without a mask
CARDS |= {name: cls.card for name, cls in nn.MASK.items() if cls.card.graphs != "grids"}  # a ring is none


def build(name: str) -> Module:
    """An attention, or linear attention under a mask, with the settings of the first example."""
    if name in nn.ATTENTION:
        return nn.ATTENTION[name](CHANNELS, **{"heads": HEADS, **nn.ATTENTION[name].examples()[0]})
    return nn.MaskedAttention(CHANNELS, heads=HEADS, mask=nn.MASK[name](**nn.MASK[name].examples()[0]))


def prepare(attn: Module, num_nodes: int) -> Data:
    """A ring, each node joined to the next two, with what the attention requires."""
    node = torch.arange(num_nodes)
    one_way = torch.cat([torch.stack([node, (node + step) % num_nodes]) for step in (1, 2)], dim=1)
    ring = Data(edge_index=torch.cat([one_way, one_way.flip(0)], dim=1), num_nodes=num_nodes)
    return testing.prepared(attn, [ring], num_walks=8, degree=3)[0]


def measure(name: str, num_nodes: int) -> dict[str, float]:
    """Seconds of processor time and peak MiB of a forward and backward pass."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    attn = build(name)
    graph = prepare(attn, num_nodes)
    x = torch.randn(num_nodes, CHANNELS, requires_grad=True)

    def step() -> Tensor:
        out = attn(x, None, graph)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()
        return x

    attn(torch.randn(64, CHANNELS), None, prepare(attn, 64))  # load libraries and compile before memory is measured
    mib = peak_mib(step)
    keep_freed(2**31 - 1)
    return {"mib": float(mib or math.nan), "seconds": bench.milliseconds(step, 3)["cpu"] / 1e3}


def grow(name: str, powers: range, gib: float, seconds: float) -> dict[str, Any]:
    """Measurements of one attention for growing graphs, its exponents, and the largest graph that fits."""
    rows: dict[int, dict[str, float]] = {}
    for power in powers:
        rows[2**power] = row = bench.in_fresh_process(measure, name, 2**power)
        print(f"{name:12} {2**power:10,} nodes {row['seconds']:8.3f} s {row['mib']:9.1f} MiB", flush=True)
        card = CARDS[name]
        too_slow = row["seconds"] * 2**card.time > seconds
        if too_slow or row["mib"] * 2**card.memory > gib * 1024:
            break
    last = dict(list(rows.items())[-FITTED:])
    fitted = {key: bench.exponent(list(last), [row[key] for row in last.values()]) for key in ("seconds", "mib")}
    size, row = list(rows.items())[-1]
    largest = size * (gib * 1024 / row["mib"]) ** (1 / max(fitted["mib"], 0.5))
    return {"rows": rows, "exponents": fitted, "largest": int(largest)}


def exceeded(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each attention whose exponents exceed the declared ones."""
    for name, found in report["cases"].items():
        for key, declared in (("seconds", CARDS[name].time), ("mib", CARDS[name].memory)):
            if found["exponents"][key] > declared + SLACK:
                yield f"{name}: exponent {found['exponents'][key]:.2f} of {key}, declared {declared:.2f}"


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """The machine, and the table in Markdown; declared exponents are in brackets."""
    rows = []
    for name, found in report["cases"].items():
        card, slopes, (size, row) = CARDS[name], found["exponents"], list(found["rows"].items())[-1]
        exponents = f"{slopes['seconds']:.2f} ({card.time:g})", f"{slopes['mib']:.2f} ({card.memory:g})"
        largest = float(f"{found['largest']:.2g}")
        rows.append((name, *exponents, f"{size:,}", f"{row['seconds']:.2f}", f"{row['mib']:,.0f}", f"{largest:,.0f}"))
    yield f"\n{bench.described(report['machine'])}\n"
    head = "attention or mask | exponent of time: | of memory: | largest graph measured: | s: | MiB:"
    yield from bench.markdown(f"{head} | nodes that fit into {report['gib']:g} GiB:", rows)


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Time and memory over the number of nodes."""
    shown = {"forward and backward (s)": "seconds", "peak memory (MiB)": "mib"}
    panels = {
        title: {name: [(size, row[key]) for size, row in one["rows"].items()] for name, one in report["cases"].items()}
        for title, key in shown.items()
    }
    bench.draw_lines(panels, path, "nodes", "", "xy")


def main() -> int:
    parser = bench.bench_parser(__doc__ or "", "2^10 to 2^13 nodes")
    parser.add_argument("--only", nargs="+", choices=list(CARDS), default=list(CARDS))
    parser.add_argument("--gib", type=float, default=16.0, help="memory to fill")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest step")
    options = parser.parse_args()
    powers = range(10, 14) if options.quick else range(12, 26)
    report: dict[str, Any] = {"machine": bench.machine(), "gib": options.gib, "cases": {}}
    for name in options.only:
        report["cases"][name] = grow(name, powers, options.gib, options.seconds)
        bench.save_json(options.out / "scale.json", report)
    draw(report, options.out / "scale.png")
    print("\n".join(table(report)))
    problems = list(exceeded(report))
    print("\n".join(problems))
    return int(bool(problems) and not options.quick)


if __name__ == "__main__":
    raise SystemExit(main())
