"""Cost that the runner adds to a training step (loading, metrics, logging, checkpoints), compared with a bare loop.

The bare loop has the same model, optimiser and clipping, and its batches are made in advance. An epoch of the runner is
everything that `topomask run` does from the start of one epoch to the start of the next, except evaluation. Checkpoints
and curves are written once per epoch, so their cost shows if an epoch is a single step on a small graph.

Run: python scripts/bench/runner.py [configs/grf/enzymes.yaml ...] [--epochs 10] [--out results/bench]

Times are processor time of one thread, so that other programs on the machine do not count.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from _measure import CONFIGS, described, machine, save_json
from rich.console import Console
from torch.nn.utils import clip_grad_norm_

from pyg_topomask.run import Experiment
from pyg_topomask.run.data.loaders import Splits, loaders, prepare
from pyg_topomask.run.graphgps import read
from pyg_topomask.run.output.progress import Display
from pyg_topomask.run.process_memory import peak_resident_mib, reset_peak, resident_mib
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.losses import task_loss

DEFAULT = [CONFIGS / "grf" / name for name in ("enzymes.yaml", "cora.yaml")]


class Watch(pl.Callback):
    """Records when epochs begin, and the seconds of evaluation between these times, on a clock; and peak memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.starts, self.evaluation = clock, list[float](), [0.0]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            reset_peak()
            self.before = resident_mib()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self.step_mib = (peak_resident_mib() or 0.0) - self.before

    def on_train_epoch_start(self, *_: Any) -> None:
        self.starts.append(self.clock())
        self.evaluation.append(0.0)

    def on_validation_start(self, *_: Any) -> None:
        self.evaluation[-1] -= self.clock()

    def on_validation_end(self, *_: Any) -> None:
        self.evaluation[-1] += self.clock()

    @property
    def epochs(self) -> list[float]:
        """Seconds of each complete epoch after the first, without evaluation."""
        pairs = zip(self.starts, self.starts[1:], self.evaluation[1:])
        return [end - begin - evaluation for begin, end, evaluation in pairs][1:]


def watched_run(path: Path, epochs: int, watch: Watch, settings: Sequence[str] = ()) -> dict[str, float]:
    """Run a config for some epochs: peak memory in MiB, of the process and of training alone."""
    experiment = read(path, [f"optim.max_epoch={epochs}", "optim.num_warmup_epochs=0", *settings])
    with tempfile.TemporaryDirectory() as folder:
        summary = experiment.run(folder, callbacks=[watch], display=Display(Console(quiet=True)))
    return {"step_mib": watch.step_mib, "total_mib": summary["peak_memory_mib"]}


def bare_epochs(experiment: Experiment, splits: Splits, epochs: int) -> list[float]:
    """Seconds of epochs with only forward, backward and the optimiser, without the first."""
    torch.manual_seed(0)
    task = splits.task
    source, training = experiment.data, experiment.training
    module = GraphModule(experiment, splits)
    batches, optimizer, seconds = list(loaders(source.serving, splits, 0)[0]), training.optimizer(module), []
    module.train()
    for _ in range(epochs + 1):
        begin = time.process_time()
        for data in batches:
            optimizer.zero_grad()
            prediction, target = task.shaped(module(data)), task.target(data)
            if "counted" in data:
                prediction, target = prediction[data.counted], target[data.counted]
            task_loss(training.loss, prediction, target, task).backward()
            if training.clip is not None:
                clip_grad_norm_(module.parameters(), training.clip)
            optimizer.step()
        seconds.append(time.process_time() - begin)
    return seconds[1:]


def compare(path: Path, epochs: int) -> dict[str, Any]:
    """Milliseconds per step of the bare loop and of the runner for one config."""
    experiment = read(path)
    source = experiment.data
    splits = prepare(source, source.load(), 0, source.draws(0))
    steps = len(loaders(source.serving, splits, 0)[0])
    bare = [1e3 * seconds / steps for seconds in bare_epochs(experiment, splits, epochs)]
    watch = Watch(time.process_time)
    watched_run(path, epochs + 2, watch)
    run = [1e3 * seconds / steps for seconds in watch.epochs]
    bare += [1e3 * seconds / steps for seconds in bare_epochs(experiment, splits, epochs)]
    alone, whole = statistics.median(bare), statistics.median(run)
    return {"steps": steps, "bare_ms": alone, "runner_ms": whole, "overhead": whole / alone - 1}


def main() -> None:
    """Compare every config and print a line for each."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("configs", nargs="*", type=Path, default=DEFAULT)
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--out", type=Path, default=Path("results/bench"))
    options = made.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "configs": {}}
    for path in options.configs:
        report["configs"][f"{path.parent.name}/{path.name}"] = compare(path, options.epochs)
    save_json(options.out / "runner.json", report)
    print(f"{described(report['machine'])}, processor time")
    print(f"{'config':32s} {'steps/epoch':>11s} {'bare ms/step':>13s} {'runner ms/step':>15s} {'overhead':>9s}")
    for name, row in report["configs"].items():
        figures = f"{row['steps']:11d} {row['bare_ms']:13.2f} {row['runner_ms']:15.2f} {row['overhead']:9.1%}"
        print(f"{name:32s} {figures}")


if __name__ == "__main__":
    main()
