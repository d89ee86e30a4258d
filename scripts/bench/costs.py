"""Times of the engines of masked attention, by which ``path="auto"`` chooses: the table in ``costs.py`` of the library.

Every engine that serves is timed, forward and backward, on masks of every kind over batches of graphs of several sizes.
For each engine, the times of the units of its work are fitted. The script then says how much time is lost, on the same
problems, because the estimated times choose another engine than the measured ones. On CPU, times are processor time of
one thread; on CUDA, wall time of finished calls.

Run: python scripts/bench/costs.py [--device cpu|cuda] [--write | --check] [--out results/bench]
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import bench_parser, machine, save_json
from scipy.optimize import least_squares
from torch import Tensor
from torch_geometric.data import Batch, Data

from pyg_topomask import nn, operators
from pyg_topomask.ops.attention import costs
from pyg_topomask.ops.attention.choice import ENGINES
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.transforms import AddRandomWalks, AddTreeOrder

BATCHES: list[list[int] | str] = [
    "star",
    "wide",
    [20] * 8,
    [24] * 64,
    list(range(8, 40)) * 2,
    [150] * 12,
    [400],
    list(range(100, 200, 8)),
    [1500],
    [6000],
    [20000],
]
"""Numbers of nodes of the graphs of each batch; a star, whose pairs must be listed in parts; or a graph whose walks
reach hundreds of nodes.
"""
CHECKED: list[tuple[list[int], tuple[int, ...]]] = [
    *(([side**2] * count, (side, side)) for side, count in ((8, 64), (16, 32), (28, 32), (32, 8), (64, 2))),
    *(([size] * count, ()) for size, count in ((20, 64), (150, 16), (1000, 4), (16384, 1))),
]
"""Sizes of the graphs of ``--check``, and the grid that each is, if any."""
MOST_LOST = 1.2
"""The largest time of the chosen engine, relative to that of the fastest one, that ``--check`` accepts."""
NODES, DEGREE = {"star": 3000, "wide": 2000}, {"star": 2.2, "wide": 10.0}
SHAPES = [(4, 16, 16), (8, 8, 8), (4, 64, 16), (1, 32, 32)]
"""Heads, features and channels."""
SHAPES_OF = {"star": SHAPES[:1], "wide": [*SHAPES, (4, 256, 8)]}
MOST_WORK = 4e9
"""Numbers that an engine may have to compute or make; it is not timed beyond."""
LEAST_S = 0.04
TABLE = Path(costs.__file__)


def graphs(sizes: list[int] | str) -> Batch:
    """Connected random graphs with everything that masks read."""
    generator = torch.Generator().manual_seed(0)
    transforms = [AddRandomWalks(64 if sizes == "wide" else 8, 4, seed=0), AddTreeOrder()]
    data = []
    degree = DEGREE.get(str(sizes), 2.2)
    for size in [NODES[sizes]] if isinstance(sizes, str) else sizes:
        first = torch.arange(1, size)
        near = (first - 1 - (torch.rand(size - 1, generator=generator) * 4).long()).clamp(min=0)
        near = torch.zeros_like(near) if sizes == "star" else near
        extra = torch.randint(size, (2, int(size * (degree / 2 - 1) + 1)), generator=generator)
        edges = torch.cat([torch.stack([first, near]), extra[:, extra[0] != extra[1]]], dim=1)
        graph = Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=size)
        for transform in transforms:
            graph = transform(graph)
        data.append(graph)
    return Batch.from_data_list(data)


def masks(batch: Batch, heads: int) -> Iterator[tuple[str, Callable[[], operators.MaskOperator | None]]]:
    """Masks by name; a call builds what a layer would build."""
    modules = {
        "grf": nn.GRFMask(heads),
        "rwgnk": nn.RWGNKMask(),
        "rwgnk, learned": nn.RWGNKMask(heads, learnable=True),
        "heat": nn.HeatMask(heads),
        "power series": nn.PowerSeriesMask(heads),
        "tree": nn.TreeMask(heads),
    }
    yield "none", lambda: None
    for name, module in modules.items():
        module = module.to(batch.edge_index.device)
        if batch.num_nodes in NODES.values() and name not in ("grf", "rwgnk"):
            continue
        yield name, lambda module=module: module(batch)
    sizes, device = batch.ptr.diff().tolist(), batch.edge_index.device
    if len(set(sizes)) == 1:
        weight = torch.rand(2 * sizes[0] - 1, device=device, requires_grad=True)
        yield "toeplitz", lambda: operators.ToeplitzOperator(weight, (sizes[0],), len(sizes))
    if batch.num_nodes <= 2000:
        matrix = torch.rand(batch.num_nodes, batch.num_nodes, device=device)
        yield "dense", lambda: operators.DenseOperator(matrix)


def seconds(call: Callable[[], Any], device: str) -> float:
    """Median seconds of a call."""

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    times: list[float] = []
    while not times or (sum(times) < LEAST_S and len(times) < 50):
        begin = clock()
        call()
        times.append(clock() - begin)
    return float(np.median(times[1:] or times))  # the first call prepares the batch


def measure(device: str, quick: bool) -> list[dict[str, Any]]:
    """Work and seconds of every engine on every problem."""
    found: list[dict[str, Any]] = []
    number = 0
    for sizes in BATCHES[2:4] if quick else BATCHES:
        batch = graphs(sizes).to(device)
        for heads, features, channels in SHAPES[:1] if quick else SHAPES_OF.get(str(sizes), SHAPES):
            shape = batch.num_nodes, heads, features
            q, k = (torch.rand(shape, device=device, requires_grad=True) for _ in range(2))
            v = torch.randn(*shape[:2], channels, device=device, requires_grad=True)
            for mask_name, build in masks(batch, heads):
                for kernel in ("linear", "softmax"):
                    number += 1
                    what = {"problem": number, "mask": mask_name, "kernel": kernel, "nodes": batch.num_nodes}
                    found += [what | row for row in engines(kernel, q, k, v, build, batch.batch, device)]
            print(f"{batch.num_nodes} nodes, {heads} heads, {features} features: {len(found)} times", flush=True)
    return found


def engines(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, build: Callable[[], Any], batch: Tensor, device: str
) -> Iterator[dict[str, Any]]:
    """Work and seconds of the engines that serve one problem."""

    def problem() -> Problem:
        return Problem(Kernel(kernel), q, k, v, build(), batch)

    base = seconds(build, device)
    for name, engine in ENGINES.items():
        asked = problem()
        if engine.refuses(asked) is not None:
            continue
        work = engine.work(asked)
        if sum(work.values()) > MOST_WORK:
            continue

        def step(engine: Any = engine) -> None:
            engine.attend(problem()).sum().backward()

        yield {"engine": name, "work": work, "seconds": max(seconds(step, device) - base, 1e-6)}


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Nanoseconds of each unit of work, two digits: the least squares of the logarithms of estimated over measured."""
    units = list(dict.fromkeys(unit for row in rows for unit in row["work"]))
    work = np.array([[row["work"].get(unit, 0) for unit in units] for row in rows], dtype=float)
    times = 1e9 * np.array([row["seconds"] for row in rows])
    scale = np.maximum(work.max(0), 1)

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.log(work / scale @ np.exp(logs)) - np.log(times)

    most = np.exp(least_squares(errors, np.full(len(units), np.log(np.median(times)))).x)  # of each unit
    return {unit: float(f"{ns / size:.2g}") for unit, ns, size in zip(units, most, scale) if ns > 0.01 * times.min()}


def lost(rows: list[dict[str, Any]], table: dict[str, dict[str, float]]) -> list[float]:
    """Measured time of the engine that the table chooses, over that of the fastest, for each problem."""
    problems: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        estimate = sum(table[row["engine"]].get(unit, 0) * amount for unit, amount in row["work"].items())
        problems.setdefault(row["problem"], []).append((estimate, row["seconds"]))
    return [min(found)[1] / min(seconds for _, seconds in found) for found in problems.values()]


def check(device: str) -> None:
    """Say on which problems the table of the library chooses an engine much slower than the fastest one."""
    slow = 0
    for sizes, grid in CHECKED:
        batch = graphs(sizes).to(device)
        for heads, width in ((4, 8), (1, 16)):
            q, k, v = (torch.rand(batch.num_nodes, heads, width, device=device, requires_grad=True) for _ in range(3))
            weight = torch.rand(heads, *(2 * side - 1 for side in grid), device=device, requires_grad=True)
            factor = torch.rand(heads, batch.num_nodes, 8, device=device, requires_grad=True)
            found: dict[str, Callable[[], Any]] = {
                "toeplitz": lambda w=weight: operators.ToeplitzOperator(w, grid, len(sizes)),  # noqa: B023
            }
            if not grid:
                found = {"low rank": lambda x=factor: operators.LowRankOperator(x, x, batch.batch)}  # noqa: B023
                found |= {name: m for name, m in masks(batch, heads) if name in ("heat", "power series", "tree")}
            for name, build in found.items():
                rows = [{"problem": 0} | row for row in engines("linear", q, k, v, build, batch.batch, device)]
                [loss] = lost(rows, costs.COSTS[device])
                slow += loss > MOST_LOST
                print(f"{name} on {len(sizes)} x {sizes[0]} nodes, {heads} heads of {width}: {loss:.2f}", flush=True)
    if slow:
        raise SystemExit(f"{slow} choices cost more than {MOST_LOST} times the fastest engine")


def main() -> None:
    parser = bench_parser(__doc__, quick="two small batches, for a first look")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--write", action="store_true", help="write the table into the library")
    parser.add_argument("--check", action="store_true", help="measure only whether the library's table chooses well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        check(args.device)
        return
    rows = measure(args.device, args.quick)
    table = {name: fit([row for row in rows if row["engine"] == name]) for name in {row["engine"] for row in rows}}
    losses = sorted(lost(rows, table))
    print(json.dumps(table, indent=1))
    shown = ", ".join(f"{share:.0%} of the problems: {np.quantile(losses, share):.2f}" for share in (0.5, 0.9, 1.0))
    print(f"time of the engine that is chosen over that of the fastest, at most, in {shown}")
    report = {"machine": machine(), "table": table, "rows": rows, "losses": losses}
    save_json(args.out / f"costs_{args.device}.json", report)
    if args.write:
        write(args.device, table)


def write(device: str, table: dict[str, dict[str, float]]) -> None:
    """Replace the table of one type of device in the library."""
    tables = costs.COSTS | {device: costs.COSTS.get(device, {}) | table}
    lines = ["COSTS: dict[str, dict[str, dict[str, float]]] = {"]
    for kind, of_engines in tables.items():
        lines += [
            f'    "{kind}": {{',
            *(f'        "{name}": {json.dumps(of_engines[name])},' for name in ENGINES if name in of_engines),
            "    },",
        ]
    text = TABLE.read_text()
    start, stop = text.index("COSTS: dict"), text.index("\n}\n")
    TABLE.write_text(text[:start] + "\n".join(lines) + text[stop:])
    print(f"wrote {TABLE}")


if __name__ == "__main__":
    main()
