"""k-MIP attention beside full attention and other exact searches, in one run.

Setting: N = 31,623 nodes, one head, d_k = 10, k = 10, values of width 10. Data: "gauss", standard normal queries and
keys; "clust0.3", both around the same √N standard normal centres with deviation 0.3. Rows:

- chosen          the library's own choice of engine
- cpp, torch      its flat C++ search and its plain torch search
- faiss, keops    the search of these libraries where they are installed, the rest being ours
- sdpa            PyTorch's scaled-dot-product attention over all keys
- sdpa, padded    the same with widths padded from 10 to 16 by zeros, which is exact and faster

Run: python scripts/bench/kmip.py [--quick] [--out results/bench]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from _measure import in_fresh_process, machine, save_json
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pyg_topomask.ops import topk_attention, topk_native
from pyg_topomask.ops.topk_backends import ENGINES, Problem

WIDTH = 10
TOPK = 10
DATA = ("gauss", "clust0.3")


def inputs(kind: str, num_nodes: int, seed: int = 0) -> list[Tensor]:
    """Queries, keys and values, shape ``[N, 1, 10]``, and the gradient of the output."""
    gen = torch.Generator().manual_seed(seed)
    q, k, v, grad = (torch.randn(num_nodes, 1, WIDTH, generator=gen) for _ in range(4))
    if kind != "gauss":
        centre = torch.randn(int(num_nodes**0.5), 1, WIDTH, generator=gen)
        q, k = (centre[torch.randint(len(centre), (num_nodes,), generator=gen)] + 0.3 * x for x in (q, k))
    return [*(x.requires_grad_() for x in (q, k, v)), grad]


def full(q: Tensor, k: Tensor, v: Tensor, width: int = WIDTH) -> Tensor:
    """Full softmax attention, with widths padded by zeros."""
    heads = (pad(x, (0, width - x.size(-1))).transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(*heads, scale=WIDTH**-0.5)[0].transpose(0, 1)[..., :WIDTH]


def methods(tensors: list[Tensor]) -> dict[str, Callable[..., Tensor]]:
    """Attention of ``(q, k, v)`` by every method that can serve here."""
    q, k = (x.detach().transpose(0, 1).contiguous() for x in tensors[:2])
    problem = Problem(q, k, [0, q.size(1)], [0, k.size(1)], TOPK)
    usable = [name for name in ("cpp", "torch", "faiss", "keops") if ENGINES[name].refuses(problem) is None]
    found: dict[str, Callable[..., Tensor]] = {"chosen": lambda *x: topk_attention(*x, TOPK)}
    for name in usable:
        found[name] = lambda *x, name=name: topk_attention(*x, TOPK, backend=name)
    return {**found, "sdpa": full, "sdpa, padded": lambda *x: full(*x, width=16)}


def timed(function: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median wall milliseconds, and CPU milliseconds of all threads, of a call after one to warm up."""
    wall, cpu = [], []
    for number in range(repeats + 1):
        begin = time.perf_counter(), time.process_time()
        function()
        if number > 0:
            wall.append((time.perf_counter() - begin[0]) * 1e3)
            cpu.append((time.process_time() - begin[1]) * 1e3)
    return {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}


def forward(attend: Callable[..., Tensor], tensors: list[Tensor]) -> Tensor:
    """One forward pass without a graph."""
    with torch.no_grad():
        return attend(*tensors[:3])


def step(attend: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """One forward and backward pass."""
    return list(torch.autograd.grad(attend(*tensors[:3]), tensors[:3], tensors[3]))


def compare(kind: str, num_nodes: int, repeats: int) -> dict[str, Any]:
    """Times of every method on one data set, in one process, and the share of keys that the tree visits."""
    tensors = inputs(kind, num_nodes)
    rows: dict[str, Any] = {}
    for name, attend in methods(tensors).items():
        fewer = repeats if name in ("chosen", "cpp") else max(1, repeats // 3)
        rows[name] = {"forward": timed(lambda attend=attend: forward(attend, tensors), fewer)}
        if name != "keops":  # its search is all that differs, and it is slow
            rows[name]["forward + backward"] = timed(lambda attend=attend: step(attend, tensors), fewer)
    q, k = (x.detach().transpose(0, 1).contiguous() for x in tensors[:2])
    ptr = [0, num_nodes]
    share = None if isinstance(topk_native.load(), str) else topk_native.search(q, k, ptr, ptr, TOPK, 0, 1.0)[1]
    return {"num_nodes": num_nodes, "milliseconds": rows, "ratios": ratios(rows), "tree visits": share}


def ratios(rows: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times the chosen method's wall and CPU time each other method takes."""
    return {
        name: {
            f"{what}, {clock}": times[clock] / rows["chosen"][what][clock]
            for what, times in row.items()
            for clock in ("wall", "cpu")
        }
        for name, row in rows.items()
        if name != "chosen"
    }


def plot(report: dict[str, Any], path: Path) -> None:
    """Bars of all methods, forward and with backward, for both data sets."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(DATA), figsize=(11, 3.8), layout="constrained", sharex=True)
    for axis, kind in zip(axes, DATA):
        rows = report["comparison"][kind]["milliseconds"]
        for shift, (what, color) in enumerate((("forward", "#0072B2"), ("forward + backward", "#E69F00"))):
            there = [(place, row[what]["wall"]) for place, row in enumerate(rows.values()) if what in row]
            axis.barh([place + 0.4 * shift for place, _ in there], [t for _, t in there], 0.38, color=color, label=what)
        axis.set_yticks([place + 0.2 for place in range(len(rows))], list(rows))
        axis.invert_yaxis()
        axis.set(xscale="log", xlabel="wall milliseconds", title=f"{kind}, N = {report['num_nodes']:,}")
    axes[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer nodes, in half a minute")
    parser.add_argument("--num-nodes", type=int, help="nodes (31,623, or 3,162 with --quick)")
    parser.add_argument("--repeats", type=int, default=6, help="timed calls of the library's own rows")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of the report and the plot")
    options = parser.parse_args()
    num_nodes = options.num_nodes or (3_162 if options.quick else 31_623)
    report: dict[str, Any] = {"machine": machine(), "num_nodes": num_nodes, "comparison": {}}
    for kind in DATA:
        result = report["comparison"][kind] = in_fresh_process(compare, kind, num_nodes, options.repeats)
        print(f"{kind}, N = {num_nodes:,}, tree visits {result['tree visits'] or 1:.1%}; ms wall (CPU), x chosen")
        for name, row in result["milliseconds"].items():
            parts = [
                f"{what} {times['wall']:9.1f} ({times['cpu']:9.1f}) "
                f"{times['wall'] / result['milliseconds']['chosen'][what]['wall']:6.2f} "
                f"({times['cpu'] / result['milliseconds']['chosen'][what]['cpu']:6.2f})"
                for what, times in row.items()
            ]
            print(f"{name:13s} " + "   ".join(parts))
    save_json(options.out / "kmip.json", report)
    plot(report, options.out / "kmip.png")


if __name__ == "__main__":
    main()
