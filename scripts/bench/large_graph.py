"""One graph of two million nodes and twenty million edges through ``topomask run``, in parts: time and memory by phase.

The graph is random: node i has class i mod 10, four of five edges stay within a class, and features are noisy classes,
so that a node's neighbours tell its class better than its own features. It is written as raw files of PyG's
``HeterophilousGraphDataset``, which one process turns into PyG's processed file. Another process then runs the command
for one epoch with ``train.sampler`` and ``val.sampler`` ``random_partition``, and measures its phases: loading;
transforms, which cut the parts and draw their walks; training; evaluation of all parts, for validation and for the
test. Times are processor time. Peaks are resident memory of the whole process, so they contain Python and PyTorch
(phase ``start``) and the graph, whose own size is printed. The kernel resets the peak at each change of phase (Linux
only).

Run: python scripts/bench/large_graph.py [--quick] [--nodes 2000000] [--parts 10] [--layers GCN+GRF …] [--whole]
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import numpy as np
import torch
from _measure import bench_parser, described, in_fresh_process, machine, markdown, save_json
from torch_geometric.data import Data

from pyg_topomask.data.graph_parts import GraphParts
from pyg_topomask.run import cli, runner, seed_run
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import LoadedDataset, base, load_dataset

CLASSES, FEATURES, EDGES_PER_NODE, SAME_CLASS = 10, 16, 10, 0.8
PHASES = ("start", "load", "transform", "train", "evaluate", "rest")


class Phases(pl.Callback):
    """Processor seconds and peak memory of each phase; one phase may interrupt another."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}
        self.open, self._since = ["start"], 0.0

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
        row = self.rows.setdefault(self.open[-1], {"seconds": 0.0, "peak_mib": 0.0})
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
        row["seconds"] += time.process_time() - self._since
        row["peak_mib"] = max(row["peak_mib"], peak)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._since = time.process_time()

    def within(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are a phase."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.begin(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.end()

        return measured

    def on_train_start(self, *_: Any) -> None:
        self.begin("train")

    def on_validation_start(self, *_: Any) -> None:
        self.begin("evaluate")

    on_test_start = on_validation_start

    def on_train_end(self, *_: Any) -> None:
        self.end()

    on_validation_end = on_test_end = on_train_end


def graph(num_nodes: int) -> dict[str, np.ndarray]:
    """The graph in the fields of PyG's raw file; ``edges`` has five rows for each node, one for both directions."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(num_nodes) % CLASSES
    one = torch.randint(num_nodes, (num_nodes * EDGES_PER_NODE // 2,), generator=generator)
    other = torch.randint(num_nodes, one.shape, generator=generator)
    same = torch.rand(one.shape, generator=generator) < SAME_CLASS
    other = torch.where(same, (other - other % CLASSES + one % CLASSES).clamp(max=num_nodes - 1), other)
    x = 2 * torch.randn(num_nodes, FEATURES, generator=generator)
    x[torch.arange(num_nodes), y] += 1
    part = torch.rand(num_nodes, generator=generator)
    masks = {"train_masks": part < 0.8, "val_masks": (part >= 0.8) & (part < 0.9), "test_masks": part >= 0.9}
    fields = {"node_features": x, "node_labels": y, "edges": torch.stack([one, other], dim=1)}
    return {name: values.numpy() for name, values in fields.items()} | {
        name: mask[None].numpy() for name, mask in masks.items()
    }


def config(folder: Path, layers: str, num_parts: int, evaluated: str = "random_partition") -> dict[str, Any]:
    """Two layers of width 32 with four heads, and four walks if the attention draws any; one epoch."""
    data = {"format": "PyG-HeterophilousGraphDataset", "name": "Roman-empire", "task": "node", "dir": str(folder)}
    return {
        "dataset": data,
        "train": {"sampler": "random_partition", "num_parts": num_parts},
        "val": {"sampler": evaluated},
        "gt": {"layer_type": layers, "layers": 2, "n_heads": 4, "dim_hidden": 32},
        "optim": {"max_epoch": 1, "base_lr": 0.01},
        "topomask": {"num_walks": 4, "max_length": 2} if "GRF" in layers else {},
        "accelerator": "cpu",
    }


def write(folder: Path, num_nodes: int) -> None:
    """Write the raw file, and PyG's processed file to the folder's cache."""
    raw = folder / "HeterophilousGraphDataset" / "roman_empire" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "roman_empire.npz", **graph(num_nodes))
    with patch.object(base, "cache_dir", lambda: folder / "cache"):
        load_dataset(load(config(folder, "GCN+Linear", 1)).config.dataset)


def measure(folder: Path, layers: str, num_parts: int, evaluated: str) -> dict[str, Any]:
    """Phases of a run, size of the graph and test accuracy."""
    phases, loaded = Phases(), list[LoadedDataset]()
    phases.record()
    phases.open = ["rest"]
    path, build = folder / "bench.yaml", seed_run.build_trainer
    path.write_text(json.dumps(config(folder, layers, num_parts, evaluated)))  # JSON is YAML

    def load_one(data: Any) -> LoadedDataset:
        loaded.append(load_dataset(data))
        return loaded[0]

    def build_trainer(config: Any, callbacks: list[Any], **more: Any) -> pl.Trainer:
        return build(config, callbacks=[*callbacks, phases], **more)

    out = folder / layers
    with ExitStack() as patched:
        for place, name, function in (
            (base, "cache_dir", lambda: folder / "cache"),
            (runner, "load_dataset", phases.within("load", load_one)),
            (seed_run, "prepare", phases.within("transform", seed_run.prepare)),
            (GraphParts, "__getitem__", phases.within("transform", GraphParts.__getitem__)),
            (seed_run, "build_trainer", build_trainer),
        ):
            patched.enter_context(patch.object(place, name, function))
        if cli.main(["run", str(path), "--out", str(out)]) != 0:
            raise SystemExit(f"the run of {layers} failed")
    phases.record()
    metrics = json.loads((out / "bench" / "summary.json").read_text())["metrics"]
    (data,) = loaded[0].graphs
    return {"phases": phases.rows, "accuracy": metrics["test_accuracy"]["mean"], **sizes(data)}


def sizes(data: Data) -> dict[str, float]:
    """Numbers of nodes and edges, and MiB of the tensors."""
    size = sum(value.nbytes for value in data.to_dict().values() if isinstance(value, torch.Tensor))
    return {"nodes": int(data.num_nodes or 0), "edges": data.num_edges, "graph_mib": size / 2**20}


def table(report: dict[str, Any]) -> Iterator[str]:
    """The machine, the graph, and the phases in Markdown."""
    (first, *_) = report["runs"].values()
    size = f"{first['nodes']:,} nodes, {first['edges']:,} edges, {first['graph_mib']:,.0f} MiB"
    yield described(report["machine"])
    yield f"{size}, {report['parts']} parts, evaluation: {report['evaluation']}\n"
    rows = []
    for layers, row in report["runs"].items():
        cells = [f"{row['phases'][name]['seconds']:,.0f} | {row['phases'][name]['peak_mib']:,.0f}" for name in PHASES]
        rows.append((f"`{layers}`", *cells, f"{100 * row['accuracy']:.1f}"))
    yield from markdown(" | ".join(["layers", *(f"{name}, s: | MiB:" for name in PHASES), "test accuracy:"]), rows)


def main() -> int:
    """Measure each kind of layers, and print a table."""
    parser = bench_parser(__doc__ or "", "2,000 nodes in 4 parts")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--layers", nargs="+", default=["GCN+GRF", "GCN+Linear"])
    parser.add_argument("--whole", action="store_true", help="evaluate the whole graph, to compare")
    options = parser.parse_args()
    num_nodes, num_parts = (2_000, 4) if options.quick else (options.nodes, options.parts)
    evaluated = "full_batch" if options.whole else "random_partition"
    report: dict[str, Any] = {"machine": machine(), "parts": num_parts, "evaluation": evaluated, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process(write, Path(folder), num_nodes)
        for layers in options.layers:
            report["runs"][layers] = in_fresh_process(measure, Path(folder), layers, num_parts, evaluated)
            save_json(options.out / "large_graph.json", report)
    print("\n".join(table(report)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
