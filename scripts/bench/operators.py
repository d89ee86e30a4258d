"""Speed of mask operators: products with 64 columns, compared with the product with the dense mask.

One run measures, in processor time:

- ratios at N = 16,384 of the time with the dense matrix to that of each operator, all in turns
- forests compared with plain torch, and on a path of 100,000 nodes without a compiler
- heat kernels compared with SciPy's `expm_multiply` on the same Laplacian
- attention on 32 graphs of 64 nodes under one mask compared with unmasked attention, forward and backward
- products with sparse matrices compared with torch's, forward and backward

`scale.py` measures how time and memory grow. The process keeps freed memory, as in a training step (`keep_freed`).

Run: python scripts/bench/operators.py [--quick] [--out results/bench]
"""

import os
import time
from collections.abc import Callable
from math import isqrt
from typing import Any
from unittest.mock import patch

import torch
from _measure import bench_parser, in_turns, machine, save_json
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import expm_multiply
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import grid as grid_graph

from pyg_topomask import nn, operators, transforms
from pyg_topomask.ops.sparse import Pattern, spmm
from pyg_topomask.run.process_memory import keep_freed

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


def forest(parent: Tensor) -> operators.MaskOperator:
    return operators.ForestExpOperator(parent, torch.rand(parent.numel()), -0.5, 0.0)


def toeplitz(*shape: int) -> operators.MaskOperator:
    return operators.ToeplitzOperator(torch.rand(*(2 * size - 1 for size in shape)), shape)


def walks(mask: torch.nn.Module, independent: bool, num_nodes: int) -> operators.MaskOperator:
    graph = Data(edge_index=grid_edges(num_nodes), num_nodes=num_nodes)
    return mask(transforms.AddRandomWalks(seed=0, independent=independent)(graph))


BUILD: dict[str, Callable[[int], operators.MaskOperator]] = {
    "causal": lambda n: operators.CausalOperator(torch.zeros(n, dtype=torch.long)),
    "forest, random tree": lambda n: forest(random_parent(n)),
    "forest, deep tree": lambda n: forest(random_parent(n, 3)),
    "forest, path": lambda n: forest(torch.arange(n) - 1),
    "tree distance, 8 hops": lambda n: operators.TreeDistanceOperator(random_parent(n), torch.rand(9), "histogram"),
    "tree distance, centroid": lambda n: operators.TreeDistanceOperator(random_parent(n), torch.rand(n), "centroid"),
    "tree distance, path": lambda n: operators.TreeDistanceOperator(torch.arange(n) - 1, torch.rand(n), "centroid"),
    "Toeplitz, 2 axes": lambda n: toeplitz(isqrt(n), isqrt(n)),
    "Toeplitz, 1 axis": lambda n: toeplitz(n),
    "grid heat": lambda n: operators.GridHeatOperator((isqrt(n), isqrt(n)), 2.0),
    "hypercube heat": lambda n: operators.HypercubeHeatOperator(n.bit_length() - 1, 0.5),
    "heat, tol 1e-4": lambda n: operators.HeatOperator(grid_edges(n), n, 1.0, tol=1e-4),
    "power series, 4 hops": lambda n: operators.PowerSeriesOperator(grid_edges(n), n, torch.rand(5)),
    "low rank, 16": lambda n: operators.LowRankOperator(torch.rand(n, 16), torch.rand(n, 16)),
    "GRF, 16 walks": lambda n: walks(nn.GRFMask(), True, n),
    "RWGNK, 16 walks": lambda n: walks(nn.RWGNKMask(), False, n),
}


def without_compiler(function: Callable[[], Any]) -> Any:
    with patch.dict(os.environ, TOPOMASK_NATIVE="0"):
        return function()


@torch.no_grad()
def products(num_nodes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds, declared multiply-adds per node, and ratio of the time with an existing dense matrix."""
    torch.manual_seed(0)
    dense, x = torch.rand(num_nodes, num_nodes), torch.randn(num_nodes, COLUMNS)
    made = {name: build(num_nodes) for name, build in BUILD.items()}
    functions: dict[str, Callable[[], Any]] = {name: lambda o=op: o @ x for name, op in made.items()}
    for name in ("forest, random tree", "tree distance, 8 hops"):
        functions[f"{name}, plain torch"] = lambda f=functions[name]: without_compiler(f)
    times = in_turns({"dense": lambda: dense @ x, **functions}, repeats)
    result = {name: {"milliseconds": ms, "ratio": times["dense"] / ms} for name, ms in times.items()}
    for name, operator in made.items():
        result[name]["multiply_adds_per_node"] = operator.num_multiply_adds / num_nodes
    for name, row in result.items():
        print(f"{name:36s} {row['milliseconds']:9.2f} ms  {row['ratio']:7.1f} x faster than dense at {num_nodes:,}")
    return result


@torch.no_grad()
def long_path(num_nodes: int) -> dict[str, float]:
    """Seconds of the first product on a path, without a compiler and with everything that a new graph needs."""
    x, seconds = torch.randn(num_nodes, COLUMNS), {}
    builds: dict[str, Callable[[Tensor], operators.MaskOperator]] = {
        "forest": forest,
        "tree distance": lambda parent: operators.TreeDistanceOperator(parent, torch.rand(num_nodes)),
    }
    for name, build in builds.items():
        parent = torch.arange(num_nodes) - 1
        begin = time.process_time()
        without_compiler(lambda b=build, p=parent: b(p) @ x)
        seconds[name] = time.process_time() - begin
        print(f"{name} on a path of {num_nodes:,} nodes, without a compiler: {seconds[name]:.2f} s")
    return seconds


@torch.no_grad()
def beside_scipy(num_nodes: int, repeats: int) -> dict[str, float]:
    """Ratio of the time of SciPy's action of the matrix exponential to ours, on one grid."""
    edge_index, result = grid_edges(num_nodes), {}
    lap = laplacian(csr_matrix((torch.ones(edge_index.size(1)).double(), edge_index.numpy()), (num_nodes, num_nodes)))
    for diffusion in (1.0, 5.0):
        for tol, dtype in ((1e-4, torch.float32), (1e-8, torch.float64)):
            operator = operators.HeatOperator(edge_index, num_nodes, diffusion, tol=tol)
            x = torch.randn(num_nodes, COLUMNS, dtype=dtype)
            both = {
                "ours": lambda o=operator, x=x: o @ x,
                "theirs": lambda t=diffusion, x=x: expm_multiply(-t * lap, x.numpy(), traceA=-t * lap.trace()),
            }
            times = in_turns(both, repeats)
            ratio = result[f"time {diffusion:g}, tol {tol:g}"] = times["theirs"] / times["ours"]
            print(f"heat, time {diffusion:g}, tol {tol:g}: {ratio:.1f} x faster than expm_multiply")
    return result


def sparse_products(num_nodes: int, repeats: int) -> dict[int, dict[str, float]]:
    """Milliseconds of `spmm` and of torch's compressed-row product, forward and backward, by the number of columns.

    Rows have 16 entries near the diagonal. Torch's product has no gradient of the entries: only that of ``x`` is taken.
    """
    torch.manual_seed(0)
    row = torch.arange(num_nodes).repeat_interleave(16)
    col = (row // 500 * 500 + torch.randint(500, row.shape)).clamp(max=num_nodes - 1)
    pattern, value, result = Pattern(row, col, num_nodes, num_nodes), torch.rand(row.numel()), {}
    rows = torch.sparse_csr_tensor(pattern.rowptr, pattern.col, value, (num_nodes, num_nodes), check_invariants=False)
    for columns in (1, 8, 16, 64, 272):
        x = torch.randn(num_nodes, columns, requires_grad=True)
        calls: dict[str, Callable[[], Any]] = {
            "spmm": lambda x=x: spmm(pattern, value, x).sum().backward(),
            "compressed rows": lambda x=x: (rows @ x).sum().backward(),
        }
        result[columns] = in_turns(calls, repeats)
        print(f"sparse product, {columns} columns:", {name: round(ms, 2) for name, ms in result[columns].items()})
    return result


class OneMask(torch.nn.Module):
    """A mask module that builds the same operator for every graph."""

    requires = ()

    def __init__(self, build: Callable[[], operators.MaskOperator]) -> None:
        super().__init__()
        self.build = build

    def forward(self, graph: Data) -> operators.MaskOperator:
        return self.build()


def equal_graphs(repeats: int) -> dict[str, float]:
    """Ratio of the time of masked to unmasked attention, forward and backward, on 32 grids of 64 nodes.

    All parameters of masks are learned.
    """
    torch.manual_seed(0)
    batch, weight = torch.arange(32).repeat_interleave(64), torch.rand(4, 15, 15, requires_grad=True)
    times = torch.ones(4, requires_grad=True)
    graph, x = Data(batch=batch, num_nodes=2048), torch.randn(2048, 64)
    masks: dict[str, Callable[[], operators.MaskOperator] | None] = {
        "unmasked": None,
        "causal": lambda: operators.CausalOperator(batch),
        "Toeplitz": lambda: operators.ToeplitzOperator(weight[0], (8, 8), 32),
        "Toeplitz per head": lambda: operators.ToeplitzOperator(weight, (8, 8), 32),
        "grid heat": lambda: operators.GridHeatOperator((8, 8), times[0], 32),
        "grid heat per head": lambda: operators.GridHeatOperator((8, 8), times, 32),
        "hypercube heat": lambda: operators.HypercubeHeatOperator(6, times[0], 32),
    }
    layers = {name: nn.MaskedAttention(64, 4, mask=None if m is None else OneMask(m)) for name, m in masks.items()}
    steps = {name: lambda a=layer: a(x, batch, graph).sum().backward() for name, layer in layers.items()}
    medians = in_turns(steps, 10 * repeats)
    result = {name: value / medians["unmasked"] for name, value in medians.items()}
    print("32 grids of 64 nodes, over unmasked attention:", {name: round(value, 2) for name, value in result.items()})
    return result


def main() -> None:
    options = bench_parser(__doc__, "smaller graphs, about half a minute").parse_args()
    keep_freed(2**31 - 1)
    repeats, size = (3, 2**12) if options.quick else (5, 2**14)
    parts: dict[str, Callable[[], Any]] = {
        "machine": machine,
        "num_nodes": lambda: size,
        "products": lambda: products(size, repeats),
        "seconds on a path": lambda: long_path(10**4 if options.quick else 10**5),
        "ratio to expm_multiply": lambda: beside_scipy(size, repeats),
        "equal graphs, over unmasked": lambda: equal_graphs(repeats),
        "sparse products": lambda: sparse_products(size, repeats),
    }
    report: dict[str, Any] = {}
    for name, measure in parts.items():
        report[name] = measure()
        save_json(options.out / "operators.json", report)


if __name__ == "__main__":
    main()
