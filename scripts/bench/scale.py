"""Every attention on one graph of growing size: exponents of time and memory, and the largest graph that fits.

A graph is a ring whose nodes are joined to the next two. Each attention, and linear attention under each mask, runs
forward and backward on it (C = 32, 4 heads) in a process of its own, with twice the nodes each time, until the next
size would need more than ``--gib`` or ``--seconds``. Exponents are fitted over the four largest sizes. An attention
fails the check if its exponent of time or memory exceeds the declared one by more than 0.15. The largest size that fits
is read off the fitted line if it was not reached. Transforms are not timed. A table is printed, and ``scale.json`` and
``scale.png`` are written.

Run: python scripts/bench/scale.py [--quick] [--only NAME …] [--gib 16] [--seconds 20] [--out results/bench]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _measure import (
    bench_parser,
    described,
    exponent,
    in_fresh_process,
    keep_memory,
    machine,
    median_ms,
    pyplot,
    save_json,
    save_plot,
)
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask import transforms
from pyg_topomask.nn import ATTENTION, MASK, MaskedAttention
from pyg_topomask.run.process_memory import peak_mib

CHANNELS, HEADS, SLACK, FITTED = 32, 4, 0.15, 4


@dataclass(frozen=True)
class Case:
    """An attention, its transform, and its declared exponents of N.

    Args:
        build: Function of N that returns the module.
        transform: Prepares the graph.
        time, memory: Declared exponents; logarithms count as 0.1.
    """

    build: Callable[[int], Module]
    transform: BaseTransform
    time: float = 1.0
    memory: float = 1.0


def _attention(name: str, transform: BaseTransform | None = None, time: float = 1.0, **settings: Any) -> Case:
    return Case(lambda size: ATTENTION[name](CHANNELS, heads=HEADS, **settings), transform or Compose([]), time)


def _mask(name: str, transform: BaseTransform | None = None, time: float = 1.0) -> Case:
    def build(size: int) -> Module:
        mask = MASK[name]([size], heads=HEADS) if name == "toeplitz" else MASK[name]()
        return MaskedAttention(CHANNELS, heads=HEADS, mask=mask)

    return Case(build, transform or Compose([]), time)


WALKS = transforms.AddRandomWalks(num_walks=8, max_length=3, seed=0)
TREE = transforms.AddTreeOrder(seed=0)

CASES = {
    "Linear": _attention("Linear"),
    "GRF": _attention("GRF", WALKS, max_length=3),
    "GKAT": _attention("GKAT", WALKS, max_length=3, num_features=16),
    "KMIP": _attention("KMIP", time=1.6),
    "Primphormer": _attention("Primphormer"),
    "Performer": _attention("Performer", num_features=16),
    "Exphormer": _attention("Exphormer", transforms.AddExpanderEdges(degree=3, num_virtual=1, seed=0)),
    "BigBird": _attention("BigBird"),
    "SGFormer": _attention("SGFormer"),
    "Polynormer": _attention("Polynormer"),
    "Transformer": _attention("Transformer", time=2.0),
    "causal": _mask("causal"),
    "heat": _mask("heat"),
    "power_series": _mask("power_series"),
    "low_rank": _mask("low_rank", transforms.AddPositions()),
    "forest": _mask("forest", TREE),
    "tree": _mask("tree", TREE, time=1.1),
}
"""SAN is missing: it scores all pairs and holds them, so its exponents are 2 by definition."""


def ring(num_nodes: int) -> Data:
    """Each node joined to the next two."""
    node = torch.arange(num_nodes)
    one_way = torch.cat([torch.stack([node, (node + step) % num_nodes]) for step in (1, 2)], dim=1)
    return Data(edge_index=torch.cat([one_way, one_way.flip(0)], dim=1), num_nodes=num_nodes)


def measure(name: str, num_nodes: int) -> dict[str, float]:
    """Seconds of processor time and peak MiB of a forward and backward pass."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = CASES[name]
    graph, attn = case.transform(ring(num_nodes)), case.build(num_nodes)
    x = torch.randn(num_nodes, CHANNELS, requires_grad=True)

    def step() -> Tensor:
        out = attn(x, None, graph)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()
        return x

    small = case.transform(ring(64))  # load libraries and compile before memory is measured
    case.build(64)(torch.randn(64, CHANNELS), None, small)
    mib = peak_mib(step)
    keep_memory()
    return {"mib": float(mib or math.nan), "seconds": median_ms(step, 3, 2, time.process_time, 10.0) / 1e3}


def grow(name: str, powers: range, gib: float, seconds: float) -> dict[str, Any]:
    """Measurements of one attention for growing graphs, its exponents, and the largest graph that fits."""
    rows: dict[int, dict[str, float]] = {}
    for power in powers:
        rows[2**power] = row = in_fresh_process(measure, name, 2**power)
        print(f"{name:12} {2**power:10,} nodes {row['seconds']:8.3f} s {row['mib']:9.1f} MiB", flush=True)
        case = CASES[name]
        too_slow = row["seconds"] * 2**case.time > seconds
        if too_slow or row["mib"] * 2**case.memory > gib * 1024:
            break
    last = dict(list(rows.items())[-FITTED:])
    fitted = {key: exponent(list(last), [row[key] for row in last.values()]) for key in ("seconds", "mib")}
    size, row = list(rows.items())[-1]
    largest = size * (gib * 1024 / row["mib"]) ** (1 / max(fitted["mib"], 0.5))
    return {"rows": rows, "exponents": fitted, "largest": int(largest)}


def exceeded(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each attention whose exponents exceed the declared ones."""
    for name, found in report["cases"].items():
        for key, declared in (("seconds", CASES[name].time), ("mib", CASES[name].memory)):
            if found["exponents"][key] > declared + SLACK:
                yield f"{name}: exponent {found['exponents'][key]:.2f} of {key}, declared {declared:.2f}"


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """The machine, and the table in Markdown; declared exponents are in brackets."""
    yield f"\n{described(report['machine'])}\n"
    yield (
        "| attention or mask | exponent of time | of memory | largest graph measured | s | MiB "
        f"| nodes that fit into {report['gib']:g} GiB |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, found in report["cases"].items():
        case, slopes = CASES[name], found["exponents"]
        size, row = list(found["rows"].items())[-1]
        largest = float(f"{found['largest']:.2g}")
        yield (
            f"| {name} | {slopes['seconds']:.2f} ({case.time:g}) | {slopes['mib']:.2f} ({case.memory:g}) | {size:,} "
            f"| {row['seconds']:.2f} | {row['mib']:,.0f} | {largest:,.0f} |"
        )


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Time and memory over the number of nodes."""
    figure, axes = pyplot().subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    colours = pyplot().get_cmap("tab20")
    for axis, key, label in zip(axes, ("seconds", "mib"), ("forward and backward (s)", "peak memory (MiB)")):
        for number, (name, found) in enumerate(report["cases"].items()):
            values = [row[key] for row in found["rows"].values()]
            axis.plot(list(found["rows"]), values, marker=".", color=colours(number), label=name)
        axis.set(xscale="log", yscale="log", xlabel="nodes", ylabel=label)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    save_plot(figure, path)


def main() -> int:
    parser = bench_parser(__doc__ or "", "2^10 to 2^13 nodes")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--gib", type=float, default=16.0, help="memory to fill")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest step")
    options = parser.parse_args()
    powers = range(10, 14) if options.quick else range(12, 26)
    report: dict[str, Any] = {"machine": machine(), "gib": options.gib, "cases": {}}
    for name in options.only:
        report["cases"][name] = grow(name, powers, options.gib, options.seconds)
        save_json(options.out / "scale.json", report)
    draw(report, options.out / "scale.png")
    print("\n".join(table(report)))
    problems = list(exceeded(report))
    print("\n".join(problems))
    return int(bool(problems) and not options.quick)


if __name__ == "__main__":
    raise SystemExit(main())
