"""Every compiled kernel with and without AVX-512, in one run: processor time of one thread, forward and backward.

The libraries are compiled for each set of vector instructions of this CPU and take turns in one process. The script
fails if a kernel takes more than ``--most`` times as long with another set as with the widest.

Run: python scripts/bench/instruction_sets.py [--quick] [--most 2.5] [--out results/bench]
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from _measure import bench_parser, both_clocks, machine, save_json
from operators import grid_edges, random_parent
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask import nn, operators, ops, transforms
from pyg_topomask.ops.dropout import dropout
from pyg_topomask.ops.gated_sum import gated_sum
from pyg_topomask.ops.hops import hop_pairs
from pyg_topomask.ops.native import loader, sources
from pyg_topomask.ops.primal import primal_map
from pyg_topomask.ops.products.factors import sparse_product
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.run.process_memory import keep_freed

SETS = ("avx512", "avx2", "plain")
"""Sets of instructions, widest first; a CPU has all from some place on."""


def kernels(size: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """Calls on one graph of ``size`` nodes, by library and name."""
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, requires_grad=True)

    q, k, v = (draw(size, 4, 16) for _ in range(3))
    x, one = draw(size, 64), [y[:, :1] for y in (q, k, v)]
    edges, parent, batch = grid_edges(size), random_parent(size), torch.arange(size) // 64
    graph = transforms.AddRandomWalks(seed=0)(Data(edge_index=edges, num_nodes=size))
    time, coeffs, hops, line = draw(1)[0], draw(5), draw(17), draw(127)
    few = [torch.randn(size, 1, 16) for _ in range(2)]
    degree = torch.bincount(edges[0], minlength=size).rsqrt()
    weight = degree[edges[0]] * degree[edges[1]]
    pattern, entries = Pattern.merge(*edges, size, size)[0], torch.rand(edges.size(1))
    matrix, bonds = (draw(8, 16, 31), draw(2, 30, 16)), draw(edges.size(1), 16)
    linear, softmax = (partial(f, q, k, v) for f in (ops.masked_linear_attention, ops.masked_softmax_attention))
    sliced = partial(ops.masked_linear_attention, *one, path="factored")
    return {
        ("blocks", "Toeplitz"): lambda: linear(
            operators.ToeplitzOperator(line, (64,), size // 64), batch, path="blocks"
        ),
        ("blocks", "Toeplitz, softmax"): lambda: softmax(
            operators.ToeplitzOperator(line.square(), (64,), size // 64), batch
        ),
        ("dropout", "dropout"): lambda: dropout(x, 0.3),
        ("forest", "exponential"): lambda: operators.ForestExpOperator(parent, entries[:size], time, 0.0) @ x,
        ("forest", "tree distances"): lambda: operators.TreeDistanceOperator(parent, hops[:9], "histogram") @ x,
        ("forest", "tree attention"): lambda: sliced(operators.TreeDistanceOperator(parent, hops)),
        ("gated", "gated sum"): lambda: gated_sum(x, bonds, edges)[0],
        ("hops", "three hops"): lambda: hop_pairs(edges, size, 3),
        ("linear", "unmasked"): lambda: linear(None),
        ("pairs", "GRF"): lambda: linear(mask(graph), path="pairwise"),
        ("pairs", "RWGNK, softmax"): lambda: softmax(walked(graph)),
        ("polynomial", "heat"): lambda: sliced(operators.HeatOperator(edges, size, time, weight, tol=1e-5)),
        ("polynomial", "power series"): lambda: sliced(operators.PowerSeriesOperator(edges, size, coeffs, weight)),
        ("primal", "primal map"): lambda: primal_map(q.repeat(1, 2, 1), x[:, :30], *matrix)[0],
        ("sparse", "square of the adjacency"): lambda: sparse_product(pattern, entries, pattern, entries),
        ("topk", "Gaussian, k = 10"): lambda: ops.topk_inner_product(*few, 10),
        ("walks", "walks"): lambda: ops.sample_walks(edges, size, num_walks=16, max_length=4, halt_prob=0.5).load,
    }


mask, walked = nn.GRFMask(), nn.RWGNKMask()


def libraries(instructions: str) -> dict[str, Any]:
    """All libraries for a set of instructions, compiled now or earlier."""
    return {name: loader._find(name, os.environ.get("CXX"), instructions) for name in sources.LIBRARIES}


def step(call: Callable[[], Any], made: dict[str, Any]) -> Tensor:
    """The result of the call with these libraries, after the backward pass of what has one."""
    with patch.object(loader, "_load", made.__getitem__):
        torch.manual_seed(0)
        found = call()
        out: Tensor = next(x for x in found if isinstance(x, Tensor)) if isinstance(found, tuple) else found
        if out.requires_grad:
            out.square().sum().backward()
    return out.detach()


def measure(size: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each kernel: milliseconds with each set, ratios to the widest, the largest difference of results."""
    widest = sources.instructions(torch.backends.cpu.get_cpu_capability())
    made, rows = {one: libraries(one) for one in SETS[SETS.index(widest) :]}, []
    for (library, name), call in kernels(size).items():
        steps = {one: partial(step, call, made[one]) for one in made}
        wanted, *others = (run() for run in steps.values())
        times = both_clocks(steps, repeats, warmup=0)
        row = {"library": library, "kernel": name, **{one: times[one]["cpu"] for one in made}}
        row |= {f"{one} / {widest}": row[one] / row[widest] for one in made if one != widest}
        row["difference"] = max(float((x - wanted).abs().max() / wanted.abs().max()) for x in others)
        print(" ".join(f"{key}={x:.3g}" if isinstance(x, float) else x for key, x in row.items()), flush=True)
        rows.append(row)
    return rows


def main() -> int:
    options = bench_parser(__doc__, "4,096 nodes in place of 16,384")
    options.add_argument("--most", type=float, default=2.5, help="times as slow as with the widest set that is allowed")
    given = options.parse_args()
    torch.set_num_threads(1)
    keep_freed(2**31 - 1)
    rows = measure(*((2**12, 3) if given.quick else (2**14, 5)))
    save_json(given.out / "instruction_sets.json", {"machine": machine(), "kernels": rows})
    return int(any(ratio > given.most for row in rows for name, ratio in row.items() if " / " in name))


if __name__ == "__main__":
    sys.exit(main())
