"""Cost of attention over the number of nodes: softmax, linear, and linear under three masks.

    python scripts/reproduce/grf_cost.py --quick
    python scripts/reproduce/grf_cost.py                         # up to 65,536 nodes; 3 minutes on one core

Setting of Reid et al. 2024, arXiv:2410.03462, Figure 3: paths of N nodes, 4 walks from each node that halt with
probability 0.5, keys of m = 8 features, values of d = 8 channels, one head. The paper counts floating-point operations
of softmax attention, linear attention and linear attention under a GRF mask. We add the exact power series and the
Toeplitz mask, count multiply-adds of the path that the library chooses (mean over 10 seeds of the walks), and measure
the processor time of the forward pass of the same call.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _bench import described, draw_lines, exponent, machine, markdown, milliseconds
from _tables import finish, read_options, start, store, table_parser
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.data import Data

from pyg_topomask import nn, transforms
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.choice import ENGINES, choose_engine
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.problem import Problem

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
    return transforms.AddRandomWalks(NUM_WALKS, LENGTH, HALT, seed=seed)(transforms.AddGridShape([num_nodes])(data))


def masks(num_nodes: int) -> Mapping[str, Callable[[Data], Any]]:
    """Method -> function that builds the mask of a graph; None without a mask."""
    return {
        "linear": lambda data: None,
        "GRF": nn.GRFMask(max_length=LENGTH),
        "power series": nn.PowerSeriesMask(max_length=LENGTH),
        "Toeplitz": nn.ToeplitzMask([num_nodes]),
    }


def count(problem: Problem) -> int:
    """Multiply-adds of numerator and denominator on the path that the library chooses."""
    mask, num_nodes, width = problem.mask, problem.k.size(0), CHANNELS + 1
    if mask is None:
        return 2 * num_nodes * FEATURES * width
    if ENGINES[choose_engine(problem)].path == "pairwise":
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
        ms = milliseconds(lambda: scaled_dot_product_attention(*heads), repeats)["cpu"]
        found["softmax"] = {"madds": float(num_nodes**2 * (FEATURES + CHANNELS)), "ms": ms}
    with torch.no_grad():
        for name, build in masks(num_nodes).items():
            used = graphs if name == "GRF" else graphs[:1]
            counts = [count(Problem(Kernel("linear"), q, k, v, build(data))) for data in used]
            ms = milliseconds(lambda build=build: masked_linear_attention(q, k, v, build(graphs[0])), repeats)["cpu"]
            found[name] = {"madds": statistics.fmean(counts), "ms": ms}
    return found


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield f"{described(report['machine'])}.\n"
    names = list(dict.fromkeys(name for row in report["rows"].values() for name in row))
    cells = []
    for size, row in report["rows"].items():
        texts = (f"{_digits(row[n]['madds'] / 1e6)} M, {_digits(row[n]['ms'])} ms" if n in row else "–" for n in names)
        cells.append([f"{int(size):,}", *texts])
    if report["exponents"]:
        cells.append(["exponent", *(f"{row['madds']:.2f}, {row['ms']:.2f}" for row in report["exponents"].values())])
    yield from markdown(" | ".join(f"{title}:" for title in ("nodes", *names)), cells)


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
    rows: Mapping[str, Any] = report["rows"]
    panels = {
        title: {
            name: [(int(n), row[name][key]) for n, row in rows.items() if name in row]
            for name in next(iter(rows.values()))
        }
        for key, title in (("madds", "multiply-adds"), ("ms", "processor time in ms"))
    }
    draw_lines(panels, path, "nodes N", "", "xy")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size. Write JSON and Markdown after each, and a plot at the end."""
    options = read_options(table_parser(__doc__ or "", "grf_cost", "up to 1,024 nodes, 2 seeds"), arguments)
    powers, seeds, repeats = (range(4, 11, 2), 2, 3) if options.quick else (range(4, 17), 10, 9)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "rows": {}, "exponents": {}}
    for power in powers:
        report["rows"][str(2**power)] = measure(2**power, seeds, repeats)
        report["exponents"] = slopes(report["rows"])
        store(report, lines, options)
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
