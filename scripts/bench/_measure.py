"""Common parts of the benchmarks: options, timing, peak memory, exponents, reports and plots."""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from pyg_topomask.cache import replacing
from pyg_topomask.tensor_files import load_tensors


def bench_parser(doc: str, quick: str) -> argparse.ArgumentParser:
    """A parser with ``--quick``, which the text ``quick`` explains, and ``--out``; ``doc`` is a module's docstring."""
    made = argparse.ArgumentParser(description=doc.split("\n")[0])
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of the report and the plots")
    return made


def median_ms(
    function: Callable[[], Any],
    repeats: int = 9,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    limit_s: float = 60.0,
) -> float:
    """Median milliseconds of a call, in wall time by default. Calls stop early after ``limit_s`` seconds."""
    for _ in range(warmup):
        function()
    times: list[float] = []
    while len(times) < repeats and sum(times) < 1e3 * limit_s:
        begin = clock()
        function()
        times.append((clock() - begin) * 1e3)
    return statistics.median(times)


def in_turns(
    functions: dict[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
    warmup: int = 1,
) -> dict[str, float]:
    """Median milliseconds of each function, after ``warmup`` calls. They are called in turns, so that other work on the
    machine affects all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(repeats + warmup):
        for name, function in functions.items():
            begin = clock()
            function()
            if repeat >= warmup:
                times[name].append(1e3 * (clock() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Result of a function called in a new process, so that nothing else contributes to its peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(function, args)
        pool.close()  # let it exit normally: KeOps writes its cache on exit, and killing it would damage the cache
        pool.join()
    return result


def keep_memory() -> None:
    """Make this process keep freed memory, as PyTorch does on a GPU (glibc; the same as ``MALLOC_MMAP_MAX_=0``).

    By default, arrays over 32 MiB are returned to the system, and the kernel clears their pages at the next use.
    """
    libc, trim_threshold, mmap_max = ctypes.CDLL(None), -1, -4
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, -1)


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of a straight line through log(values) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def pyplot() -> Any:
    """Matplotlib's plotting module, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_plot(figure: Any, path: Path) -> None:
    """Write a figure as PNG, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot().close(figure)
    print(f"wrote {path}")


def peptides(count: int) -> list[Data] | None:
    """``count`` graphs of LRGB's Peptides-func sample in $TOPOMASK_DATA, repeated if necessary; None without it."""
    folder = Path(os.environ.get("TOPOMASK_DATA", "")) / "LRGB-sample" / "peptides-func" / "raw"
    files = [folder / f"{split}.pt" for split in ("train", "val", "test")]
    if not all(file.is_file() for file in files):
        return None
    rows = [row for file in files for row in load_tensors(file)]
    return [Data(edge_index=edges, num_nodes=x.size(0)) for x, _, edges, *_ in islice(cycle(rows), count)]


def log_axis(axis: Any) -> None:
    """Make the x axis logarithmic, with labels at 1, 2 and 5 times powers of ten even if it spans less than one."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:,g}")


def machine() -> dict[str, Any]:
    """Description of the machine, for reports."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1] for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].strip() if names else model
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def save_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report completely or not at all, so that a killed run keeps the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {path}")


def read_json(path: Path) -> dict[str, Any]:
    """A report; empty if the file does not exist or is damaged."""
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        report = None
    if not isinstance(report, dict):
        print(f"{path} is damaged and will be replaced")
        return {}
    return report


def resumed(path: Path, settings: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """The report of an earlier run with the same settings, or a new one with empty parts."""
    report = read_json(path)
    same = {key: report.get(key) for key in settings} == settings
    return report if same else {**settings, **{part: {} for part in parts}}


def described(where: Mapping[str, Any]) -> str:
    """The result of `machine` in words."""
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"{where['cpu']}, {threads}, torch {where['torch']}"
