"""``topomask run`` on a large graph on disk, in one process or several: time by phase, memory, metrics.

The graph is that of ``disk_graph.py``: communities of 1,000 nodes, hubs by a power law, five edges drawn for each node.
One half of a label needs three hops: whether the sum of the means of the first feature over one, two and three hops is
above its median. The other half is global: the sign of the community, which each of its nodes shows only faintly. One
random label in four is right. The graph is written as a stream, cut into clusters as ``topomask partition`` does, and
kept in ``--folder``. Two sets of masks share its files: ``all`` has every node in training, validation or test, ``few``
a tenth of the nodes in training, at most 100,000, and a tenth of that in each of the others.

``cluster`` and ``random_partition`` train on ``all`` in parts of 20,000 nodes, and one process adds up the gradients of
two parts, so that it makes the steps of two processes. ``walks`` trains on ``few``. Each run is a command of
``torchrun``, or two on this machine that find each other (``--groups 2``). In each process, ``cut`` is the time of
cutting training parts, ``walks`` that of drawing their walks, ``train`` the rest of training, ``evaluate`` validation
and test. With workers, these cut and draw, and ``workers`` is their processor time in training. Memory is the largest
of 20 samples a second: ``own`` pages, and ``mapped`` ones of files, which processes share (Linux only). ``--batches``
limits the batches of each loader in each process.

Run: python scripts/bench/large_graph.py [--quick] [--nodes 1000000] [--samplers cluster …] [--processes 1 2]
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from subprocess import Popen
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import torch
from _measure import Watch, bench_parser, described, in_fresh_process, machine, markdown, save_json
from disk_graph import COMMUNITY, FEATURES, edges
from torch import Tensor

from pyg_topomask.data import DiskGraph, GraphSource, save_edges
from pyg_topomask.data.disk import node_blocks, with_arrays
from pyg_topomask.data.graph_parts import GraphParts
from pyg_topomask.run import cli, seed_run
from pyg_topomask.run.commands.partition import write
from pyg_topomask.run.data.parts import RootedNeighborhoods
from pyg_topomask.run.distributed import rank
from pyg_topomask.transforms import AddRandomWalks

LAYERS, PHASES = "GCN+GRF", ("cut", "walks", "train", "evaluate", "rest")
PART, CLUSTERS, FAINT, BLOCK = 20_000, 2, 0.25, 2**18
METRICS = ("train_loss", "val_accuracy", "test_accuracy")


class Phases(pl.Callback):
    """Seconds of each phase, of which one may interrupt another: wall, processor, and processor of loader workers."""

    def __init__(self) -> None:
        self.watch, self.open = Watch(), ["rest"]
        self.rows: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in PHASES}
        self._since = (time.perf_counter(), 0.0, 0.0)

    def begin(self, name: str) -> None:
        """Start a phase within the current one."""
        self.record()
        self.open.append(name)

    def end(self) -> None:
        """Return to the phase before."""
        self.record()
        self.open.pop()

    def record(self) -> None:
        """Add what the current phase has used since the last change."""
        now, row = (time.perf_counter(), time.process_time(), self.watch.others()), self.rows[self.open[-1]]
        row[:] = [spent + end - begin for spent, begin, end in zip(row, self._since, now)]
        self._since = now

    def within(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are a phase, except in evaluations."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            if "evaluate" in self.open:
                return function(*args, **kwargs)
            self.begin(name)
            result = function(*args, **kwargs)
            self.end()
            return result

        return measured

    def on_train_start(self, *_: Any) -> None:
        self.begin("train")

    def on_validation_start(self, *_: Any) -> None:
        self.begin("evaluate")

    on_test_start = on_validation_start

    def on_train_end(self, *_: Any) -> None:
        self.end()

    on_validation_end = on_test_end = on_train_end


def features(num_nodes: int) -> Iterator[Tensor]:
    """Noise; the second column shows the sign of the node's community."""
    draw = torch.Generator().manual_seed(1)
    for nodes in node_blocks(num_nodes, BLOCK):
        x = torch.randn(nodes.numel(), FEATURES, generator=draw)
        x[:, 1] += FAINT * (2 * signs(num_nodes)[nodes // COMMUNITY] - 1)
        yield x


def signs(num_nodes: int) -> Tensor:
    """0 or 1 for each community."""
    return torch.randint(2, (num_nodes // COMMUNITY + 1,), generator=torch.Generator().manual_seed(2))


def labels(graph: DiskGraph) -> Tensor:
    """The four classes, ``[N]``."""
    source, values = GraphSource(graph), graph.arrays["x"][:, 0].clone()
    total = torch.zeros_like(values)
    for _ in range(3):
        means = []
        for nodes in node_blocks(graph.num_nodes, BLOCK):
            row, place = source.edges_from(nodes)
            sums = torch.zeros(nodes.numel()).index_add_(0, row, values[source.index[place].long()])
            means.append(sums / row.bincount(minlength=nodes.numel()).clamp(min=1))
        values = torch.cat(means)
        total += values / values.std()
    return 2 * (total > total.median()).long() + signs(graph.num_nodes)[torch.arange(graph.num_nodes) // COMMUNITY]


def make(folder: Path, num_nodes: int) -> None:
    """Write the graph and both sets of masks, and print the processor time."""
    torch.set_num_threads(1)
    begin = time.process_time()
    graph = save_edges(folder / "edges", edges(num_nodes), num_nodes, {"x": features(num_nodes)}, undirected=True)
    graph = with_arrays(folder / "labelled", graph, {"y": labels(graph)})
    made = time.process_time()
    cut = write(graph, max(2, CLUSTERS * num_nodes // PART), folder / "clusters", "stream")
    print(f"graph {made - begin:,.1f} s, clusters {time.process_time() - made:,.1f} s, {cut:.1%} of edges between them")
    few = min(100_000, num_nodes // 10)
    for name, bounds in (("all", (0.8, 0.9, 1.0)), ("few", [share * few / num_nodes for share in (1, 1.1, 1.2)])):
        draw = torch.rand(num_nodes, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        part = torch.bucketize(draw, torch.tensor(bounds, dtype=torch.float64))
        masks = {f"{part_name}_mask": part == number for number, part_name in enumerate(("train", "val", "test"))}
        with_arrays(folder / name, DiskGraph(folder / "clusters"), masks)


def config(folder: Path, sampler: str, processes: int, workers: int) -> dict[str, Any]:
    """Two layers of width 32 with four heads and four walks; the same steps in one and in two processes."""
    data = folder / ("few" if sampler == "walks" else "all")
    nodes = DiskGraph(data).num_nodes
    return {
        "dataset": {"format": "Files", "name": "graph", "task": "node", "dir": str(data)},
        "train": {"sampler": sampler, "num_parts": max(2, nodes // PART), "batch_size": min(256, nodes // 400)},
        "val": {"sampler": sampler},
        "gt": {
            "layer_type": LAYERS, "layers": 2, "n_heads": 4, "dim_hidden": 32, "dropout": 0.0,
            "attn_dropout": 0.0, "batch_norm": False, "layer_norm": True,
        },
        "optim": {
            "max_epoch": 1, "base_lr": 0.01, "clip_grad_norm": False,
            "batch_accumulation": 2 // processes if sampler != "walks" else 1,
        },
        "topomask": {"num_walks": 4, "max_length": 3},
        "num_workers": workers,
        "accelerator": "cpu",
    }  # fmt: skip


def measure(out: Path, limit: int | None) -> None:
    """Run the config of a folder in this process, and write what it took."""
    torch.set_num_threads(1)
    phases, build = Phases(), seed_run.build_trainer
    limits = {} if limit is None else {f"limit_{part}_batches": limit for part in ("train", "val", "test")}

    def build_trainer(config: Any, callbacks: list[Any], **more: Any) -> pl.Trainer:
        return build(config, callbacks=[*callbacks, phases], **limits, **more)

    with ExitStack() as patched:
        for place, name, phase in (
            (GraphParts, "cut", "cut"),
            (RootedNeighborhoods, "cut", "cut"),
            (AddRandomWalks, "additions", "walks"),
        ):
            patched.enter_context(patch.object(place, name, phases.within(phase, getattr(place, name))))
        patched.enter_context(patch.object(seed_run, "build_trainer", build_trainer))
        if cli.main(["run", str(out / "bench.yaml"), "--out", str(out)]) != 0:
            raise SystemExit("the run failed")
    phases.record()
    result = json.loads((out / "bench" / "0" / "result.json").read_text())["metrics"]
    row = {"phases": phases.rows, "memory": phases.watch.memory, "metrics": {name: result[name] for name in METRICS}}
    (out / f"process-{rank()}.json").write_text(json.dumps(row))


def launch(folder: Path, sampler: str, processes: int, workers: int, options: Any) -> list[dict[str, Any]]:
    """The measurements of each process of a run."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        out = Path(temporary)
        (out / "bench.yaml").write_text(json.dumps(config(folder, sampler, processes, workers)))  # JSON is YAML
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes // options.groups}"]
        command += [f"--nnodes={options.groups}", "--rdzv-backend=c10d", "--rdzv-id=bench"]
        command += [f"--rdzv-endpoint=localhost:{29400 if options.groups > 1 else 0}", __file__, "--within", str(out)]
        command += [] if options.batches is None else ["--batches", str(options.batches)]
        started = [Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) for _ in range(options.groups)]
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"a run with {sampler} failed")
        return [json.loads((out / f"process-{number}.json").read_text()) for number in range(processes)]


def table(report: dict[str, Any]) -> Iterator[str]:
    """The machine, the graph, and the slowest process of each run in Markdown: seconds of the wall (processor)."""
    yield f"{described(report['machine'])}, {LAYERS}, {report['nodes']:,} nodes, {report['edges']:,} edges\n"
    cells = []
    for run, rows in report["runs"].items():
        times = (max(row["phases"][name] for row in rows) for name in PHASES[:-1])
        workers = f"{max(row['phases']['train'][2] for row in rows):,.1f}"
        memory = (f"{max(row['memory'][name] for row in rows):,.0f}" for name in ("own", "mapped"))
        metrics = (f"{rows[0]['metrics'][name]:.4f}" for name in METRICS)
        cells.append([run, *(f"{wall:,.1f} ({cpu:,.1f})" for wall, cpu, _ in times), workers, *memory, *metrics])
    head = (f"{title}:" for title in (*PHASES[:-1], "workers", "own MiB", "mapped MiB", *METRICS))
    yield from markdown(" | ".join(["run", *head]), cells)


def main() -> None:
    """Make the graph unless the folder has it, measure each run, and print a table."""
    parser = bench_parser(__doc__ or "", "20,000 nodes")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--samplers", nargs="*", default=["cluster", "random_partition", "walks"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--groups", type=int, default=1, help="commands of torchrun that share the processes")
    parser.add_argument("--workers", type=int, nargs="+", default=[0], help="workers of each loader")
    parser.add_argument("--batches", type=int)
    parser.add_argument("--folder", type=Path, help="where the graph is, or is made (default: a temporary folder)")
    parser.add_argument("--within", type=Path, help="used by the script itself")
    options = parser.parse_args()
    if options.within:
        return measure(options.within, options.batches)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "few").exists():
            in_fresh_process(make, folder, 20_000 if options.quick else options.nodes)
        graph = DiskGraph(folder / "few")
        report: dict[str, Any] = {"machine": machine(), "nodes": graph.num_nodes, "edges": graph.num_edges, "runs": {}}
        for sampler, processes, workers in product(options.samplers, options.processes, options.workers):
            name = f"{sampler}, {processes} processes, {workers} workers each"
            report["runs"][name] = launch(folder, sampler, processes, workers, options)
            save_json(options.out / "large_graph.json", report)
    print("\n".join(table(report)))


if __name__ == "__main__":
    main()
