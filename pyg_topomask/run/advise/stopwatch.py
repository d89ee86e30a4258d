"""A callback that measures the time of every step, and what an epoch adds to its steps."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch_geometric.data import Data

from pyg_topomask.run.advise.sample import Size


class Seconds(NamedTuple):
    """Wall time, and processor time of all threads."""

    wall: float = 0.0
    processor: float = 0.0

    def __sub__(self, other: Any) -> Seconds:
        return Seconds(self.wall - other[0], self.processor - other[1])

    @classmethod
    def now(cls) -> Seconds:
        """The clocks, after a GPU has finished its work."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return cls(time.perf_counter(), time.process_time())


class Step(NamedTuple):
    """Size of a batch and the time that it took, with its collation."""

    size: Size
    seconds: Seconds


class Stopwatch(pl.Callback):
    """Measures each training step and validation step of all epochs but the first, which warms up."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, list[Step]]] = []
        self.starts: list[Seconds] = []
        self._last = Seconds()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._last = Seconds.now()
        self.starts.append(self._last)
        self.epochs.append({"train": [], "val": []})

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Data, *_: Any) -> None:
        self._record("train", batch)

    def on_validation_start(self, *_: Any) -> None:
        self._last = Seconds.now()

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Data, *_: Any) -> None:
        self._record("val", batch)

    def _record(self, part: str, batch: Data) -> None:
        now = Seconds.now()
        ends = batch.get("ptr")
        counts = [int(batch.num_nodes or 0)] if ends is None else ends.diff().tolist()
        self.epochs[-1][part].append(Step(Size.of(counts), now - self._last))
        self._last = now

    def steps(self, part: str) -> list[Step]:
        """The steps of a part, ``train`` or ``val``, in the order of its batches: medians over epochs."""
        measured = [epoch[part] for epoch in self.epochs[1:] or self.epochs]
        return [
            Step(same[0].size, Seconds(*(statistics.median(clock) for clock in zip(*(step.seconds for step in same)))))
            for same in zip(*measured)
        ]

    def fixed(self) -> Seconds:
        """Median time that an epoch takes in addition to its steps: metrics, files, checkpoints."""
        rest = []
        for begin, end, parts in zip(self.starts[1:], self.starts[2:], self.epochs[1:]):
            steps = [step.seconds for part in parts.values() for step in part]
            rest.append((end - begin) - Seconds(*(sum(clock) for clock in zip(*steps))))
        if not rest:
            return Seconds()
        return Seconds(*(max(0.0, statistics.median(clock)) for clock in zip(*rest)))
