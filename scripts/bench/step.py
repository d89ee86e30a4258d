"""One training step of Primphormer on Peptides, with and without compiled code, compared with PyG's GPSConv.

A step is a forward and a backward pass of a stack of four layers of width 96 with dropout 0.1, on one batch of 64
graphs, which are real if $TOPOMASK_DATA has them. Stacks take turns. Each figure is the median of processor time on one
thread, and ratios are to PyG's ``GPSConv`` with "multihead" attention and the same convolution, GINE. Rows that end in
"plain" run under ``TOPOMASK_NATIVE=0``.

Run: python scripts/bench/step.py [--quick] [--rounds 15] [--out results/bench]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attention
import torch
from _measure import bench_parser, described, machine, save_json
from torch.nn import Module, ModuleList
from torch_geometric.nn import GPSConv

from pyg_topomask.nn import GPSModel, PrimphormerAttention, auxiliary_loss

WORKLOAD, NUM_GRAPHS, DROPOUT = "Peptides-func", 64, 0.1
PEER = "GPSConv multihead, GINE"
ROWS = {
    PEER: None,
    "Primphormer, GINE": ("GINE", None),
    "Primphormer, GINE, plain": ("GINE", "0"),
    "Primphormer, GatedGCN": ("GatedGCN", None),
    "Primphormer, GatedGCN, plain": ("GatedGCN", "0"),
}
"""Convolution and value of TOPOMASK_NATIVE of each stack but PyG's."""


class PyGStack(attention.PyGStack):
    """PyG's layers with dropout."""

    def __init__(self, load: attention.Workload) -> None:
        super().__init__(load, "multihead")
        width, heads = load.channels, load.heads
        self.layers = ModuleList(
            GPSConv(width, attention.gine(width), heads, DROPOUT, attn_type="multihead") for _ in range(load.layers)
        )


class OurStack(attention.OurStack):
    """The library's layers with dropout."""

    def __init__(self, load: attention.Workload, conv: str) -> None:
        Module.__init__(self)
        width, build = load.channels, attention.CONVS[conv]
        self.model = GPSModel(
            *(width, width, width, load.layers),
            lambda _: build(width, DROPOUT) if conv == "GatedGCN" else build(width),
            lambda _: PrimphormerAttention(width, load.heads, dropout=DROPOUT),
            edge_dim=width,
            dropout=DROPOUT,
        )


def step_of(row: str, batch: Any, load: attention.Workload) -> Callable[[], None]:
    """A function that runs one step of a row's stack."""
    torch.manual_seed(0)
    conv, native = ROWS[row] or (None, None)
    stack = PyGStack(load) if conv is None else OurStack(load, conv)
    x = torch.randn(batch.num_nodes, load.channels, requires_grad=True)
    edge_attr = torch.randn(batch.num_edges, load.channels)

    def step() -> None:
        if native is not None:
            os.environ["TOPOMASK_NATIVE"] = native
        try:
            (stack(x, batch, edge_attr).sum() + auxiliary_loss(stack)).backward()
        finally:
            os.environ.pop("TOPOMASK_NATIVE", None)

    return step


def measure(rounds: int) -> dict[str, Any]:
    """Median milliseconds of each row's step, and the ratio of PyG's time to it."""
    load = replace(attention.WORKLOADS[WORKLOAD], batch_size=NUM_GRAPHS)
    attention.WORKLOADS[WORKLOAD] = load
    batch, real = attention.make_batch(WORKLOAD, ())
    steps = {row: step_of(row, batch, load) for row in ROWS}
    times: dict[str, list[float]] = {row: [] for row in ROWS}
    for number in range(rounds + 2):
        for row, step in steps.items():
            begin = time.process_time()
            step()
            if number >= 2:  # after warm-up
                times[row].append((time.process_time() - begin) * 1e3)
    found = {
        row: {
            "ms": statistics.median(own),
            "times_faster": statistics.median(peer / mine for peer, mine in zip(times[PEER], own)),
        }
        for row, own in times.items()
    }
    return {"nodes": batch.num_nodes, "edges": batch.num_edges, "real graphs": real, "stacks": found}


def main() -> None:
    parser = bench_parser(__doc__, "three rounds")
    parser.add_argument("--rounds", type=int, default=15, help="number of timed steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.pop("TOPOMASK_NATIVE", None)
    report = {"machine": machine(), **measure(3 if options.quick else options.rounds)}
    print(f"{described(report['machine'])}, processor time; {report['nodes']:,} nodes, {report['edges']:,} edges")
    print(f"{'stack':32s} {'ms/step':>8} {'times faster':>13}")
    for row, figures in report["stacks"].items():
        print(f"{row:32s} {figures['ms']:8.0f} {figures['times_faster']:13.2f}")
    save_json(options.out / ("step-quick.json" if options.quick else "step.json"), report)


if __name__ == "__main__":
    main()
