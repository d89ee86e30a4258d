"""A trial of one attention, which is some epochs of the runner on a sample of the data, and what a run will take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from pyg_topomask.loader import collate
from pyg_topomask.nn import Mask
from pyg_topomask.ops.reach import mean_hops, reach
from pyg_topomask.run.advise.sample import MOST_BATCHES, Epoch, Sample, Size, estimate
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.loaders import Served, Splits, build_splits, loaders, ready_loader
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.process_memory import peak_cuda_mib, peak_mib
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.trainer import build_trainer, quiet, uses_cuda
from pyg_topomask.run.user_modules import import_modules

_EPOCHS = 3  # the first of them warms up


class Step(NamedTuple):
    """Size of a batch, and the seconds that it took with its collation."""

    size: Size
    seconds: float


@dataclass
class Trial:
    """What a trial has measured.

    Args:
        train: Training steps.
        val: Validation steps.
        fixed: Seconds that an epoch takes in addition to its steps, such as for metrics and checkpoints.
        prepare: Seconds per node to compute encodings and to draw walks, edges and trees.
        stored: Bytes per node of the graphs, and of what these add to them.
        step_mib: Rise of the peak memory in MiB, of a GPU if it is used; None if it cannot be measured.
        parameters: Number of parameters.
        hops: Mean number of hops that the mask of the first layer sees before training; None without a mask.
        parts: Number of training and validation steps of an epoch, if the loader serves one graph.
        problem: Why the attention cannot be used; empty if it can.
    """

    train: list[Step] = field(default_factory=list)
    val: list[Step] = field(default_factory=list)
    fixed: float = 0.0
    prepare: float = 0.0
    stored: tuple[float, float] = (0.0, 0.0)
    step_mib: float | None = None
    parameters: int = 0
    hops: float | None = None
    parts: tuple[int, int] | None = None
    problem: str = ""


def run_trial(
    values: Mapping[str, Any], overrides: Sequence[str], modules: Sequence[str], sample: Sample, seconds: float
) -> Trial:
    """Try a config on the largest batch of a sample, then on as many batches as the time allows.

    An attention that cannot be used gives a trial with its ``problem``.

    Args:
        values: The config.
        overrides: Settings that choose the attention.
        modules: The user's modules to import first.
        sample: The data.
        seconds: Time for the training steps.
    """
    trial = Trial()
    try:
        import_modules(modules)
        with storage_errors(), quiet():
            config = check_config(values, overrides)[0].config
            train = config.train.model_copy(update={"eval_period": 1, "ckpt_period": 10**6, "mode": "custom"})
            optim = config.optim.model_copy(update={"max_epoch": _EPOCHS})
            config = config.model_copy(update={"train": train, "optim": optim})
            _measure(trial, config, replace(sample, train=sample.train[-1:]))
            count = min(len(sample.train), int(seconds / (_EPOCHS * trial.train[-1].seconds)))
            if count > 1:
                _measure(trial, config, replace(sample, train=sample.train[-count:]))
    except (RunError, ValueError, TypeError, RuntimeError) as error:
        trial.problem = str(error)
    return trial


def _measure(trial: Trial, config: Config, sample: Sample) -> None:
    """Prepare and train on all batches of a sample, and note what it took."""
    torch.manual_seed(config.seed)
    graphs, parts = [graph for batch in sample.train for graph in batch], sample.masks
    every: Any = sample.masks
    if parts is None:
        every = (range(len(graphs)), range(len(graphs), len(graphs) + len(sample.val)), [])
        graphs = [*graphs, *sample.val]
    before, nodes = sum(map(_bytes, graphs)), sum(int(graph.num_nodes or 0) for graph in graphs)
    dataset = LoadedDataset(graphs, sample.task, None if parts is not None else every, sample.resample)
    begin = time.perf_counter()
    steps = build_sampling_transforms(config, config.seed)
    splits = build_splits(config, dataset, graphs, every, steps, cache=False)
    trial.prepare = (time.perf_counter() - begin) / nodes
    prepared = splits.train if splits.is_one_graph else [*splits.train, *splits.val]
    trial.stored = before / nodes, (sum(map(_bytes, prepared)) - before) / nodes
    watch, measure = _Stopwatch(), peak_cuda_mib if uses_cuda(config) else peak_mib
    with tempfile.TemporaryDirectory() as folder:
        trial.step_mib = measure(lambda: _train(trial, config, splits, sample, watch, Path(folder)))
    trial.train, trial.val, trial.fixed = watch.train, watch.val, watch.fixed()


def _bytes(graph: Data) -> int:
    return sum(value.nbytes for value in graph.to_dict().values() if isinstance(value, Tensor))


def _train(trial: Trial, config: Config, splits: Splits, sample: Sample, watch: _Stopwatch, folder: Path) -> None:
    """Train for some epochs as a run does."""
    sizes = (splits.in_channels, splits.task.num_outputs, splits.edge_channels, splits.task.level)
    config = sized(config, *sizes)
    module = GraphModule(build_model(config, *sizes), config, splits.task, splits.data_format())
    trial.parameters = sum(parameter.numel() for parameter in module.model.parameters())
    callbacks = [EpochSeed(config.seed, 0, splits.set_epoch), Recorder(folder, config, lambda *_: None), watch]
    if splits.is_one_graph:
        train, val, _ = loaders(config, splits, config.seed)
        trial.parts = len(train), len(val)
    else:
        ends = list(accumulate(map(len, sample.train)))
        batches = [list(range(end - len(graphs), end)) for graphs, end in zip(sample.train, ends)]
        served = Served(splits.train, splits.serve_transforms)
        train = DataLoader(served, batch_sampler=batches, num_workers=config.num_workers, collate_fn=collate)
        val = ready_loader(splits.val, config.train.batch_size)
    trial.hops = _mean_hops(module.model, next(iter(train)))
    trainer = build_trainer(config, callbacks=callbacks, limit_train_batches=MOST_BATCHES, default_root_dir=folder)
    trainer.fit(module, train, val)


def _mean_hops(model: Module, batch: Data) -> float | None:
    """How far the first mask of a model sees in a batch; None without a mask."""
    mask = next((part for part in model.modules() if isinstance(part, Mask)), None)
    return None if mask is None else float(mean_hops(reach(mask, batch, num_rows=16)).mean())


class _Stopwatch(pl.Callback):
    """Measures each training step and validation step of all epochs but the first."""

    def __init__(self) -> None:
        self.train: list[Step] = []
        self.val: list[Step] = []
        self._last = self._begin = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._last = _now()
        if trainer.current_epoch == 1:
            self._begin = self._last

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Data, *_: Any) -> None:
        self._record(self.train, batch, trainer.current_epoch)

    def on_validation_start(self, *_: Any) -> None:
        self._last = _now()

    def on_validation_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Data, *_: Any) -> None:
        self._record(self.val, batch, trainer.current_epoch)

    def on_train_end(self, *_: Any) -> None:
        self._last = _now()

    def _record(self, steps: list[Step], batch: Data, epoch: int) -> None:
        now, ends = _now(), batch.get("ptr")
        counts = [int(batch.num_nodes or 0)] if ends is None else ends.diff().tolist()
        if epoch > 0:
            steps.append(Step(Size.of(counts), now - self._last))
        self._last = now

    def fixed(self) -> float:
        """Seconds that an epoch takes in addition to its steps."""
        steps = sum(step.seconds for step in self.train + self.val)
        return max(0.0, self._last - self._begin - steps) / (_EPOCHS - 1)


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Prediction(NamedTuple):
    """What a run with an attention takes.

    Args:
        epoch_s: Seconds per epoch, with evaluation.
        prepare_s: Seconds before the first epoch for encodings, walks, edges and trees.
        step_mib: Rise of the peak memory in training, in MiB; None if it cannot be measured.
        stored_mib: Memory of what is added to the graphs and of the batches of evaluations, in MiB.
    """

    epoch_s: float
    prepare_s: float
    step_mib: float | None
    stored_mib: float


def predict(trial: Trial, epoch: Epoch, eval_period: int = 1) -> Prediction:
    """Predict a run from a trial.

    Args:
        trial: The measurements.
        epoch: What an epoch processes.
        eval_period: Number of epochs per evaluation.
    """
    if trial.parts is not None:  # parts of one graph have about the same size
        pairs = zip(trial.parts, (trial.train, trial.val))
        train, val = (count * float(np.mean([step.seconds for step in steps])) for count, steps in pairs)
    else:
        train, val = (
            sum(estimate(steps, size) for size in sizes)
            for steps, sizes in ((trial.train, epoch.train), (trial.val, epoch.val))
        )
    given, added = trial.stored
    stored = (added * epoch.num_nodes + (given + added) * epoch.evaluated_nodes) / 2**20
    prepare = trial.prepare * epoch.num_nodes
    return Prediction(train + val / eval_period + trial.fixed, prepare, trial.step_mib, stored)
