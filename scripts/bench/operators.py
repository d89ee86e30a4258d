"""Speed and scaling of mask operators: products with 64 columns, compared with the product with the dense mask.

One run measures, in processor time and on one graph per size:

- ratios at N = 16,384 of the time with the dense matrix to that of each operator
- exponents of time over N, fitted to all sizes
- heat kernels compared with SciPy's `expm_multiply` on the same Laplacian
- attention on 32 grids of 64 nodes under one mask compared with unmasked attention

Run: python scripts/bench/operators.py [--quick] [--out results/bench]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from _measure import bench_parser, exponent, machine, median_ms, pyplot, save_json
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import expm_multiply
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import grid as grid_graph

from pyg_topomask.nn import MaskedAttention
from pyg_topomask.operators import (
    CausalOperator,
    ForestExpOperator,
    GridHeatOperator,
    HeatOperator,
    HypercubeHeatOperator,
    LowRankOperator,
    MaskOperator,
    PowerSeriesOperator,
    ToeplitzOperator,
    TreeDistanceOperator,
)

COLUMNS = 64


def random_parent(num_nodes: int, reach: int | None = None) -> Tensor:
    """A random tree: the parent of a node is any earlier node, or for a deep tree one of the ``reach`` before it."""
    node, draw = torch.arange(num_nodes), torch.rand(num_nodes)
    parent = (draw * node).long() if reach is None else (node - 1 - (reach * draw).long()).clamp(min=0)
    parent[0] = -1
    return parent


def grid_edges(num_nodes: int) -> Tensor:
    """Edges of the square grid, where each node is joined to its eight neighbours."""
    edge_index, _ = grid_graph(isqrt(num_nodes), isqrt(num_nodes))
    return edge_index[:, edge_index[0] != edge_index[1]]


def forest(parent: Tensor) -> MaskOperator:
    return ForestExpOperator(parent, torch.rand(parent.numel()), -0.5, 0.0)


def toeplitz(*shape: int) -> MaskOperator:
    return ToeplitzOperator(torch.rand(*(2 * size - 1 for size in shape)), shape)


BUILD: dict[str, Callable[[int], MaskOperator]] = {
    "causal": lambda n: CausalOperator(torch.zeros(n, dtype=torch.long)),
    "forest, random tree": lambda n: forest(random_parent(n)),
    "forest, deep tree": lambda n: forest(random_parent(n, 3)),
    "forest, path": lambda n: forest(torch.arange(n) - 1),
    "tree distance, 8 hops": lambda n: TreeDistanceOperator(random_parent(n), torch.rand(9), "histogram"),
    "tree distance, centroid": lambda n: TreeDistanceOperator(random_parent(n), torch.rand(n), "centroid"),
    "tree distance, path": lambda n: TreeDistanceOperator(torch.arange(n) - 1, torch.rand(n), "centroid"),
    "Toeplitz, 1 axis": lambda n: toeplitz(n),
    "Toeplitz, 2 axes": lambda n: toeplitz(isqrt(n), isqrt(n)),
    "grid heat": lambda n: GridHeatOperator((isqrt(n), isqrt(n)), 2.0),
    "hypercube heat": lambda n: HypercubeHeatOperator(n.bit_length() - 1, 0.5),
    "heat, tol 1e-4": lambda n: HeatOperator(grid_edges(n), n, 1.0, tol=1e-4),
    "power series, 4 hops": lambda n: PowerSeriesOperator(grid_edges(n), n, torch.rand(5)),
    "low rank, 16": lambda n: LowRankOperator(torch.rand(n, 16), torch.rand(n, 16)),
}


@torch.no_grad()
def scaling(sizes: list[int], repeats: int) -> dict[str, Any]:
    """Milliseconds of every operator at every size, without building its structure, and the exponents."""
    times: dict[str, list[float]] = {}
    for name, build in BUILD.items():
        for size in sizes:
            operator, x = build(size), torch.randn(size, COLUMNS)
            product = median_ms(lambda o=operator, x=x: o @ x, repeats, 1, time.process_time, 10.0)
            times.setdefault(name, []).append(product)
        print(f"{name:24s} exponent {exponent(sizes, times[name]):5.2f}   {times[name][-1]:10.1f} ms at {sizes[-1]:,}")
    exponents = {name: exponent(sizes, values) for name, values in times.items()}
    return {"sizes": sizes, "milliseconds": times, "exponents": exponents}


@torch.no_grad()
def ratios(num_nodes: int, repeats: int) -> dict[str, float]:
    """Ratio of the time with an existing dense matrix to that of each operator."""
    dense, x = torch.rand(num_nodes, num_nodes), torch.randn(num_nodes, COLUMNS)
    operators = {name: build(num_nodes) for name, build in BUILD.items()}
    result = {}
    for name, operator in operators.items():
        pair = [median_ms(f, repeats, 1, time.process_time) for f in (lambda: dense @ x, lambda o=operator: o @ x)]
        result[name] = pair[0] / pair[1]
        print(f"{name:24s} {result[name]:8.1f} x faster than the dense product at {num_nodes:,}")
    return result


@torch.no_grad()
def beside_scipy(num_nodes: int, repeats: int) -> dict[str, float]:
    """Ratio of the time of SciPy's action of the matrix exponential to ours, on one grid."""
    edge_index, result = grid_edges(num_nodes), {}
    adj = csr_matrix((torch.ones(edge_index.size(1)).double(), edge_index.numpy()), (num_nodes, num_nodes))
    lap = csr_matrix((adj.sum(0).A1 if hasattr(adj.sum(0), "A1") else adj.sum(0), [range(num_nodes)] * 2)) - adj
    for diffusion in (1.0, 5.0):
        for tol, dtype in ((1e-4, torch.float32), (1e-8, torch.float64)):
            operator = HeatOperator(edge_index, num_nodes, diffusion, tol=tol)
            x = torch.randn(num_nodes, COLUMNS, dtype=dtype)
            ours = median_ms(lambda o=operator, x=x: o @ x, repeats, 1, time.process_time)
            theirs = median_ms(lambda t=diffusion, x=x: expm_multiply(-t * lap, x.numpy()), 3, 0, time.process_time)
            result[f"time {diffusion:g}, tol {tol:g}"] = theirs / ours
            print(f"heat, time {diffusion:g}, tol {tol:g}: {theirs / ours:.1f} x faster than expm_multiply")
    return result


class OneMask(torch.nn.Module):
    """A mask module that builds the same operator for every graph."""

    requires = ()

    def __init__(self, build: Callable[[], MaskOperator]) -> None:
        super().__init__()
        self.build = build

    def forward(self, graph: Data) -> MaskOperator:
        return self.build()


def equal_graphs(repeats: int) -> dict[str, float]:
    """Ratio of the time of masked to unmasked attention, forward and backward, on 32 grids of 64 nodes."""
    torch.manual_seed(0)
    batch, weight = torch.arange(32).repeat_interleave(64), torch.rand(4, 15, 15, requires_grad=True)
    graph, x = Data(batch=batch, num_nodes=2048), torch.randn(2048, 64)
    masks: dict[str, Callable[[], MaskOperator] | None] = {
        "unmasked": None,
        "Toeplitz": lambda: ToeplitzOperator(weight[0], (8, 8), 32),
        "Toeplitz per head": lambda: ToeplitzOperator(weight, (8, 8), 32),
        "grid heat": lambda: GridHeatOperator((8, 8), 1.0, 32),
    }
    layers = {name: MaskedAttention(64, 4, mask=None if m is None else OneMask(m)) for name, m in masks.items()}
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(3 * repeats):  # in turns, so that other work on the machine affects all layers equally
        for name, layer in layers.items():
            times[name].append(median_ms(lambda a=layer: a(x, batch, graph).sum().backward(), 1, 1, time.process_time))
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {name: value / medians["unmasked"] for name, value in medians.items()}
    print("32 grids of 64 nodes, over unmasked attention:", {name: round(value, 2) for name, value in result.items()})
    return result


def plot(report: dict[str, Any], folder: Path) -> None:
    """Draw time over N with its exponent, one picture for each operator."""
    plt, runs = pyplot(), report["scaling"]
    for name, times in runs["milliseconds"].items():
        figure, axis = plt.subplots(figsize=(4.5, 3.5), layout="constrained")
        axis.loglog(runs["sizes"], times, "o-", color="#0072B2", label=f"slope {runs['exponents'][name]:.2f}", base=2)
        axis.set(xlabel="nodes N", ylabel=f"product with {COLUMNS} columns (ms)", title=name)
        axis.legend()
        figure.savefig(folder / f"operators-{name.replace(', ', '-').replace(' ', '-').lower()}.png", dpi=120)
        plt.close(figure)
    print(f"wrote {len(runs['sizes'])} sizes of {len(runs['milliseconds'])} operators to {folder}/operators-*.png")


def main() -> None:
    options = bench_parser(__doc__, "smaller graphs, about half a minute").parse_args()
    torch.manual_seed(0)
    powers = range(10, 15 if options.quick else 21, 2)
    repeats, size = (3, 2**12) if options.quick else (5, 2**14)
    report = {
        "machine": machine(),
        "ratio to the dense product": ratios(size, repeats),
        "ratio to expm_multiply": beside_scipy(size, repeats),
        "equal graphs, over unmasked": equal_graphs(repeats),
        "scaling": scaling([2**power for power in powers], repeats),
    }
    save_json(options.out / "operators.json", report)
    plot(report, options.out)


if __name__ == "__main__":
    main()
