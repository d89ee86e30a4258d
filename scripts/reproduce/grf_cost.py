"""Cost of attention over the number of nodes: softmax, linear, and linear under three masks.

    python scripts/reproduce/grf_cost.py --quick
    python scripts/reproduce/grf_cost.py                         # up to 65,536 nodes; 3 minutes on one core

Setting of Reid et al. 2024, arXiv:2410.03462, Figure 3: paths of N nodes, 4 walks from each node that halt with
probability 0.5, keys of m = 8 features, values of d = 8 channels, one head. The paper counts floating-point operations
of softmax attention, linear attention and linear attention under a GRF mask. We add the exact power series and the
Toeplitz mask, count multiply-adds of the path that the library chooses (mean over 10 seeds of the walks), and measure
the processor time of the forward pass of the same call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _bench import exponent, median_ms
from _tables import described, machine, pyplot, read_options, save_json, save_plot, start, table_parser, write_table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.data import Data

from pyg_topomask.nn import GRFMask, PowerSeriesMask, ToeplitzMask
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.plan import ENGINES, plan
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.transforms import AddGridShape, AddRandomWalks
from pyg_topomask.viz.drawing import PALETTE

FEATURES, CHANNELS, NUM_WALKS, HALT, LENGTH = 8, 8, 4, 0.5, 4
NUM_COEFFS = (LENGTH + 1) * (LENGTH + 2) // 2
"""Products of the modulation function that make up an entry of a GRF mask."""

MOST_SOFTMAX = 2**14
"""Largest N of softmax attention, whose cost grows with N²."""


def path_graph(num_nodes: int, seed: int = 0) -> Data:
    """A path with its walks and the shape of its grid."""
    nodes = torch.arange(num_nodes - 1)
    one_way = torch.stack([nodes, nodes + 1])
    data = Data(edge_index=torch.cat([one_way, one_way.flip(0)], dim=1), num_nodes=num_nodes)
    return AddRandomWalks(NUM_WALKS, LENGTH, HALT, seed=seed)(AddGridShape([num_nodes])(data))


def masks(num_nodes: int) -> Mapping[str, Callable[[Data], Any]]:
    """Method -> function that builds the mask of a graph; None without a mask."""
    return {
        "linear": lambda data: None,
        "GRF": GRFMask(max_length=LENGTH),
        "power series": PowerSeriesMask(max_length=LENGTH),
        "Toeplitz": ToeplitzMask([num_nodes]),
    }


def count(problem: Problem) -> int:
    """Multiply-adds of numerator and denominator on the path that the library chooses."""
    mask, num_nodes, width = problem.mask, problem.k.size(0), CHANNELS + 1
    if mask is None:
        return 2 * num_nodes * FEATURES * width
    if ENGINES[plan(problem)].path == "pairwise":
        return problem.num_pairs * (FEATURES + width + NUM_COEFFS)
    return (mask.num_multiply_adds + 2 * num_nodes) * FEATURES * width


def measure(num_nodes: int, seeds: int, repeats: int) -> dict[str, dict[str, float]]:
    """Multiply-adds and milliseconds of each method."""
    torch.manual_seed(0)
    q, k = (torch.randn(num_nodes, 1, FEATURES).relu() for _ in range(2))
    v = torch.randn(num_nodes, 1, CHANNELS)
    graphs = [path_graph(num_nodes, seed) for seed in range(seeds)]
    found: dict[str, dict[str, float]] = {}
    if num_nodes <= MOST_SOFTMAX:
        heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
        madds = float(num_nodes**2 * (FEATURES + CHANNELS))
        found["softmax"] = {"madds": madds, "ms": _time(lambda: scaled_dot_product_attention(*heads), repeats)}
    with torch.no_grad():
        for name, build in masks(num_nodes).items():
            used = graphs if name == "GRF" else graphs[:1]
            counts = [count(Problem(Kernel("linear"), q, k, v, build(data))) for data in used]
            ms = _time(lambda build=build: masked_linear_attention(q, k, v, build(graphs[0])), repeats)
            found[name] = {"madds": statistics.fmean(counts), "ms": ms}
    return found


def _time(call: Callable[[], Tensor], repeats: int) -> float:
    return median_ms(call, repeats, clock=time.process_time)


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Millions of multiply-adds, and milliseconds of processor time, of one "
        "forward pass. Exponents are fitted from 4,096 nodes on."
    )
    yield ""
    names = list(dict.fromkeys(name for row in report["rows"].values() for name in row))
    yield "| nodes | " + " | ".join(names) + " |"
    yield "|--:|" + "--:|" * len(names)
    for size, row in report["rows"].items():
        cells = [f"{_digits(row[n]['madds'] / 1e6)} M, {_digits(row[n]['ms'])} ms" if n in row else "–" for n in names]
        yield f"| {int(size):,} | " + " | ".join(cells) + " |"
    if report["exponents"]:
        cells = [f"{slope['madds']:.2f}, {slope['ms']:.2f}" for slope in report["exponents"].values()]
        yield "| exponent | " + " | ".join(cells) + " |"


def _digits(x: float) -> str:
    """Three digits, or all before the point."""
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def slopes(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Exponents of both quantities for each method, over the sizes from 4,096 on."""
    large = {int(size): row for size, row in rows.items() if int(size) >= 4096}
    found: dict[str, dict[str, float]] = {}
    for name in next(iter(large.values()), {}):
        known = [(size, row[name]) for size, row in large.items() if name in row]
        if len(known) > 1:
            sizes = [size for size, _ in known]
            found[name] = {key: exponent(sizes, [row[key] for _, row in known]) for key in ("madds", "ms")}
    return found


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Both quantities over N, on logarithmic axes."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, key, label in zip(axes, ("madds", "ms"), ("multiply-adds", "processor time in ms")):
        for color, name in zip(PALETTE, next(iter(report["rows"].values()))):
            points = [(int(size), row[name][key]) for size, row in report["rows"].items() if name in row]
            axis.loglog(*zip(*points), "o-", ms=4, color=color, label=name)
        axis.set(xlabel="nodes N", ylabel=label)
        axis.legend()
    save_plot(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size. Write JSON and Markdown after each, and a plot at the end."""
    options = read_options(table_parser(__doc__ or "", "grf_cost", "up to 1,024 nodes, 2 seeds"), arguments)
    powers, seeds, repeats = (range(4, 11, 2), 2, 3) if options.quick else (range(4, 17), 10, 9)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "rows": {}, "exponents": {}}
    for power in powers:
        report["rows"][str(2**power)] = measure(2**power, seeds, repeats)
        report["exponents"] = slopes(report["rows"])
        save_json(options.out / "grf_cost.json", report)
        write_table(options, "grf_cost", "\n".join(lines(report)) + "\n")
    plot(report, options.out / "grf_cost.png")
    print((options.out / "grf_cost.md").read_text())


if __name__ == "__main__":
    start(main)
