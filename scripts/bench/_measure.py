"""Common parts of the benchmarks: options, timing, peak memory, exponents, reports and plots."""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_topomask.cache import replacing
from pyg_topomask.tensor_files import load_tensors
from pyg_topomask.viz.drawing import PALETTE, pyplot, save_figure

CONFIGS = Path(__file__).parents[2] / "configs"


def bench_parser(doc: str, quick: str) -> argparse.ArgumentParser:
    """A parser with ``--quick``, which the text ``quick`` explains, and ``--out``; ``doc`` is a module's docstring."""
    made = argparse.ArgumentParser(description=doc.split("\n")[0])
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of the report and the plots")
    return made


def both_clocks(
    functions: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 1
) -> dict[str, dict[str, float]]:
    """Median milliseconds of each function in wall time (``"wall"``), and in processor time of all threads (``"cpu"``).

    They are called in turns, so that other work on the machine affects all of them; the first ``warmup`` calls do not
    count.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for repeat in range(repeats + warmup):
        for name, function in functions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            if repeat >= warmup:
                times[name].append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
    return {name: dict(zip(("wall", "cpu"), map(statistics.median, zip(*found)))) for name, found in times.items()}


def milliseconds(function: Callable[[], Any], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median milliseconds of one function, as by `both_clocks`."""
    return both_clocks({"": function}, repeats, warmup)[""]


def in_turns(functions: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 1) -> dict[str, float]:
    """Median milliseconds of processor time of each function, as by `both_clocks`."""
    return {name: times["cpu"] for name, times in both_clocks(functions, repeats, warmup).items()}


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Result of a function called in a new process, so that nothing else contributes to its peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(function, args)
        pool.close()  # let it exit normally: KeOps writes its cache on exit, and killing it would damage the cache
        pool.join()
    return result


class Watch:
    """What a process and those that it starts use, as seen from a thread (Linux only).

    Attributes:
        memory: Largest MiB of own (``"own"``) and of mapped pages (``"mapped"``) of this process, 20 times a second.
        seconds: Processor seconds of each process that it started, directly or not, by its number, twice a second.
    """

    def __init__(self) -> None:
        self.memory, self.seconds = {"own": 0.0, "mapped": 0.0}, dict[int, float]()
        self._read(psutil.Process())  # what is measured may end before the thread has begun
        threading.Thread(target=self._look, daemon=True).start()

    def _read(self, process: psutil.Process) -> None:
        now = process.memory_info()
        for name, size in (("own", now.rss - now.shared), ("mapped", now.shared)):
            self.memory[name] = max(self.memory[name], size / 2**20)

    def _look(self) -> None:
        process = psutil.Process()
        for number in count():
            self._read(process)
            for child in process.children(recursive=True) if number % 10 == 0 else ():
                with suppress(psutil.Error):  # it has ended
                    times = child.cpu_times()
                    self.seconds[child.pid] = times.user + times.system
            time.sleep(0.05)

    def others(self) -> float:
        """Processor seconds of the other processes until now."""
        return sum(self.seconds.copy().values())


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of a straight line through log(values) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def ring_with_bridges(num_nodes: int) -> Data:
    """A ring of atoms with a bridge at every sixth."""
    ring = torch.arange(num_nodes)
    bridges = torch.stack([ring[::6], (ring[::6] + 5) % num_nodes])
    bonds = torch.cat([torch.stack([ring, (ring + 1) % num_nodes]), bridges], dim=1)
    return Data(edge_index=to_undirected(bonds), num_nodes=num_nodes)


def peptides(count: int) -> list[Data] | None:
    """``count`` graphs of LRGB's Peptides-func sample in $TOPOMASK_DATA, repeated if necessary; None without it."""
    folder = Path(os.environ.get("TOPOMASK_DATA", "")) / "LRGB-sample" / "peptides-func" / "raw"
    files = [folder / f"{split}.pt" for split in ("train", "val", "test")]
    if not all(file.is_file() for file in files):
        return None
    rows = [row for file in files for row in load_tensors(file)]
    return [Data(edge_index=edges, num_nodes=x.size(0)) for x, _, edges, *_ in islice(cycle(rows), count)]


def drawn(
    panels: Mapping[str, Any], path: Path, size: tuple[float, float], columns: int = 4
) -> Iterator[tuple[Any, Any]]:
    """Panels side by side, each with a title: its axes, and what it shows. At the end, the picture is written.

    Args:
        panels: Title of a panel -> what it shows.
        path: The picture; without panels, none is written.
        size: Inches of a panel.
        columns: Largest number of panels side by side.
    """
    if not panels:
        return
    import matplotlib

    matplotlib.use("Agg")
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    inches = (size[0] * columns, size[1] * rows)
    figure, axes = pyplot().subplots(rows, columns, figsize=inches, layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, shown) in zip(axes.flat, panels.items()):
        axis.set_title(title)
        yield axis, shown
    print(f"wrote {save_figure(figure, path)}")


def draw_lines(
    panels: Mapping[str, Mapping[str, Iterable[Any]]], path: Path, x: str, y: str, log: str = "", columns: int = 4
) -> None:
    """Draw named lines in panels side by side.

    Args:
        panels: Title of a panel -> name of a line -> its points ``(x, y)`` or ``(x, y, deviation)``.
        path: The picture; without panels, none is written.
        x, y: What the axes show.
        log: Logarithmic axes, ``""``, ``"x"``, ``"y"`` or ``"xy"``.
        columns: Largest number of panels side by side.
    """
    for axis, lines in drawn(panels, path, (5, 4), columns):
        for number, (name, points) in enumerate(lines.items()):
            form, color = ("o-", "s--", "^:")[number // len(PALETTE) % 3], PALETTE[number % len(PALETTE)]
            axis.errorbar(*zip(*points), fmt=form, ms=4, lw=1.2, capsize=2, color=color, label=name)
        axis.set(xlabel=x, ylabel=y, **{f"{name}scale": "log" for name in log})
        axis.legend(fontsize=8)


def machine() -> dict[str, Any]:
    """Description of the machine, for reports."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1] for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].strip() if names else model
    if torch.cuda.is_available():
        model = f"{torch.cuda.get_device_name()} beside {model}"
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def save_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report completely or not at all, so that a killed run keeps the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {path}")


def read_json(path: Path) -> dict[str, Any]:
    """A report; empty if the file does not exist."""
    return json.loads(path.read_text()) if path.is_file() else {}


def resumed(path: Path, settings: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """The report of an earlier run with the same settings, or a new one with empty parts."""
    report = read_json(path)
    same = {key: report.get(key) for key in settings} == settings
    return report if same else {**settings, **{part: {} for part in parts}}


def described(where: Mapping[str, Any]) -> str:
    """The result of `machine` in words."""
    threads = "one thread" if where["threads"] == 1 else f"{where['threads']} threads"
    return f"{where['cpu']}, {threads}, torch {where['torch']}"


def markdown(head: str, rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Lines of a table in Markdown.

    Args:
        head: Titles of the columns, between bars; columns whose title ends in a colon are aligned to the right.
        rows: Cells of each row.
    """
    titles = head.split(" | ")
    rule = ("--:|" if title.endswith(":") else "---|" for title in titles)
    lines = ("".join(f" {cell} |" if str(cell) else " |" for cell in row) for row in rows)
    yield "|" + "".join(f" {title.removesuffix(':')} |" if title else " |" for title in titles)
    yield "|" + "".join(rule)
    yield from (f"|{line}" for line in lines)
