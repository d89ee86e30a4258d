"""Training steps on a GPU: milliseconds, kernels and waits of each attention and mask, beside PyG's GPSConv.

A step is that of `launches.py`: four layers, forward and backward pass, clipping and AdamW, on batches that lie on the
device: 128 graphs of 12 to 34 nodes, and 128 of 150 nodes on average, the size of Peptides-func. Each step has a new
batch, for which nothing is known from earlier steps. Models take turns, and a time is the median of wall times between
synchronisations. Kernels are those that torch's profiler sees in one step, and waits are the warnings of
``torch.cuda.set_sync_debug_mode``.

Run: python scripts/bench/gpu.py [--only NAME …] [--rounds N] [--json FILE]
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import launches
import torch
from _measure import machine, save_json
from launches import NAMES, graphs_of, model_of, train_step
from torch_geometric.data import Batch

SIZES = {"small": launches.SIZES, "peptides": [8 + 67 * number % 287 for number in range(128)]}


def step_of(name: str) -> tuple[Callable[[Batch], Any], Batch]:
    """A training step, and its batch, of which each step takes a copy."""
    torch.manual_seed(0)
    model = model_of(name).cuda()
    step = partial(train_step, model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    return step, Batch.from_data_list(graphs_of(name)).to("cuda")


def asked(step: Callable[[Batch], Any], batch: Batch) -> dict[str, int]:
    """Kernels and waits of one step."""
    batches = [batch.clone() for _ in range(2)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step(batches[0])
        torch.cuda.synchronize()
    kernels = sum(event.count for event in seen.key_averages() if event.device_type.name == "CUDA")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        step(batches[1])
    torch.cuda.set_sync_debug_mode("default")
    return {"kernels": kernels, "waits": sum("synchroniz" in str(warning.message) for warning in waits)}


def timed(step: Callable[[Batch], Any], batch: Batch) -> float:
    """Milliseconds of one step."""
    batch = batch.clone()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step(batch)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    options.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", default=NAMES, help="attentions and masks")
    options.add_argument("--rounds", type=int, default=10, help="steps of each, in turns")
    options.add_argument("--json", type=Path, help="file of the report")
    given = options.parse_args()
    report: dict[str, Any] = {"machine": machine() | {"gpu": torch.cuda.get_device_name()}}
    for sizes, launches.SIZES in SIZES.items():
        steps, rows = {}, report.setdefault(sizes, {})
        for name in given.only:
            try:
                steps[name] = step_of(name)
                for _ in range(3):  # kernels of Triton are compiled
                    timed(*steps[name])
                rows[name] = asked(*steps[name])
            except torch.cuda.OutOfMemoryError:
                print(f"{sizes}: {name} needs more memory than the device has")
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(given.rounds):
            for name in rows:
                times[name].append(timed(*steps[name]))
        print(f"{sizes:22} {'ms/step':>8} {'x multihead':>12} {'kernels':>8} {'waits':>6}")
        for name, row in rows.items():
            row["ms"] = statistics.median(times[name])
            ratio = row["ms"] / rows.get("PyG multihead", row)["ms"]
            print(f"{name:22} {row['ms']:8.1f} {ratio:12.2f} {row['kernels']:8} {row['waits']:6}", flush=True)
        if given.json is not None:
            save_json(given.json, report)


if __name__ == "__main__":
    main()
