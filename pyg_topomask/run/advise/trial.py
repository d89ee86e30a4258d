"""A trial of one attention: some epochs of the runner on a sample of the data, and what a run will take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.loader import collate
from pyg_topomask.nn import Mask
from pyg_topomask.ops.reach import mean_hops, reach
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.loaders import Served, Splits, loaders, prepare, ready_loader
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.process_memory import peak_cuda_mib, peak_mib
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.task import Task
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.trainer import build_trainer, quiet, uses_cuda
from pyg_topomask.run.user_modules import import_modules

MOST_BATCHES = 24
"""Training batches in a sample; a trial uses as many as its time allows."""

_EPOCHS = 3  # the first of them warms up


@dataclass(frozen=True)
class Sample:
    """Graphs for trials, with the features that the model takes, and how much of the data they are.

    Args:
        train: The graphs of training batches; the last one is the largest batch of an epoch. A single graph is a batch.
        val: The graphs of a validation batch.
        masks: Training, validation and test nodes of a single graph, else None.
        task: What is predicted.
        resample: As in :class:`~pyg_topomask.run.data.formats.LoadedDataset`.
        steps: Number of training and validation batches of an epoch; those of a single graph depend on the loader.
        nodes: Nodes of all graphs.
        evaluated_nodes: Nodes of the validation and test graphs.
    """

    train: list[list[Data]]
    val: list[Data]
    masks: tuple[Tensor, Tensor, Tensor] | None
    task: Task
    resample: Callable[[int], BaseTransform] | None
    steps: tuple[int, int]
    nodes: int
    evaluated_nodes: int


def draw_sample(config: Config, dataset: LoadedDataset, graphs: Sequence[Data], parts: tuple[Any, Any, Any]) -> Sample:
    """Choose the batches of trials.

    Args:
        config: Gives batch size and seed.
        dataset: Gives the task.
        graphs: All graphs, with features.
        parts: Indices of the training, validation and test graphs, or masks of nodes for a single graph.
    """
    counts, task, size = [int(graph.num_nodes or 0) for graph in graphs], dataset.task, config.train.batch_size
    if dataset.is_one_graph:
        graph = graphs[0].clone()
        return Sample([[graph]], [graph], parts, task, dataset.resample, (1, 1), counts[0], 0)
    order = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(config.seed)).tolist()
    batches = [[parts[0][i] for i in order[start : start + size]] for start in range(0, len(order), size)]
    batches.sort(key=lambda batch: sum(counts[i] ** 2 for i in batch))
    # Copies share no storage with the data set, which would be sent to another process as a whole.
    *train, val = ([graphs[i].clone() for i in batch] for batch in [*_some(batches, MOST_BATCHES), parts[1][:size]])
    steps, evaluated = (len(batches), -(-len(parts[1]) // size)), sum(counts[i] for i in (*parts[1], *parts[2]))
    return Sample(train, val, None, task, dataset.resample, steps, sum(counts), evaluated)


def _some(batches: list[Any], most: int) -> list[Any]:
    """The last one of batches that are sorted by size, and others at equal steps, together at most ``most``."""
    return [*batches[:-1][:: max(1, -(-(len(batches) - 1) // (most - 1)))], batches[-1]]


@dataclass
class Trial:
    """What a run with an attention takes, as a trial predicts it.

    Args:
        epoch_s: Seconds per epoch, with evaluation.
        prepare_s: Seconds before the first epoch for encodings, walks, edges and trees.
        step_s: Seconds of a training step.
        total_mib: Peak memory of the run in MiB, of its process or of tensors on the GPU; None if it is not known.
        step_mib: Rise of the peak memory in training in MiB, of a GPU if it is used; None if it cannot be measured.
        stored_mib: Memory of what is added to the graphs and of the batches of evaluations, in MiB.
        parameters: Number of parameters.
        hops: Mean number of hops that the mask of the first layer sees before training; None without a mask.
        problem: Why the attention cannot be used; empty if it can.
    """

    epoch_s: float = 0.0
    prepare_s: float = 0.0
    step_s: float = 0.0
    total_mib: float | None = None
    step_mib: float | None = None
    stored_mib: float = 0.0
    parameters: int = 0
    hops: float | None = None
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
    try:
        import_modules(modules)
        with storage_errors(), quiet():
            config = check_config(values, overrides)[0].config
            train = config.train.model_copy(update={"eval_period": 1, "ckpt_period": 10**6, "mode": "custom"})
            optim = config.optim.model_copy(update={"max_epoch": _EPOCHS})
            shortened = config.model_copy(update={"train": train, "optim": optim})
            trial = _measure(shortened, replace(sample, train=sample.train[-1:]), config.train.eval_period)
            count = min(len(sample.train), int(seconds / (_EPOCHS * trial.step_s)))
            if count > 1:
                trial = _measure(shortened, replace(sample, train=_some(sample.train, count)), config.train.eval_period)
            return trial
    except (RunError, ValueError, TypeError, RuntimeError) as error:
        return Trial(problem=str(error))


def _measure(config: Config, sample: Sample, eval_period: int) -> Trial:
    """Prepare and train on all batches of a sample, and predict from what it took."""
    torch.manual_seed(config.seed)
    graphs = [graph for batch in sample.train for graph in batch]
    parts: Any = None
    if sample.masks is None:
        parts = (range(len(graphs)), range(len(graphs), len(graphs) + len(sample.val)), [])
        graphs = [*graphs, *sample.val]
    given, nodes = sum(map(_bytes, graphs)), sum(int(graph.num_nodes or 0) for graph in graphs)
    dataset, begin = LoadedDataset(graphs, sample.task, parts, sample.resample), time.perf_counter()
    steps = build_sampling_transforms(config, config.seed)
    features = graphs, cast(Any, parts or sample.masks), ()
    splits = prepare(config, dataset, config.seed, steps, features=features, cache=False)
    prepare_s = (time.perf_counter() - begin) / nodes * sample.nodes
    prepared = splits.train if splits.is_one_graph else [*splits.train, *splits.val]
    stored = sum(map(_bytes, prepared))
    trial = Trial(prepare_s=prepare_s)
    trial.stored_mib = ((stored - given) * sample.nodes + stored * sample.evaluated_nodes) / nodes / 2**20
    watch, measure = _Stopwatch(), peak_cuda_mib if uses_cuda(config) else peak_mib
    with tempfile.TemporaryDirectory() as folder:
        trial.step_mib = measure(lambda: _train(trial, config, splits, sample, watch, Path(folder)))
    train, val, rest = (fmean(seconds) for seconds in watch.seconds.values())
    trial.step_s = train / len(sample.train)
    trial.epoch_s = watch.times[0] * train + watch.times[1] * val / eval_period + rest
    return trial


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
        watch.times = max(1.0, len(train) / MOST_BATCHES), 1.0
    else:
        ends = list(accumulate(map(len, sample.train)))
        batches = [list(range(end - len(graphs), end)) for graphs, end in zip(sample.train, ends)]
        served = Served(splits.train, splits.serve_transforms)
        train = DataLoader(served, batch_sampler=batches, num_workers=config.num_workers, collate_fn=collate)
        val = ready_loader(splits.val, config.train.batch_size)
        watch.times = sample.steps[0] / len(batches), sample.steps[1]
    trial.hops = _mean_hops(module.model, next(iter(train)))
    trainer = build_trainer(config, callbacks=callbacks, limit_train_batches=MOST_BATCHES, default_root_dir=folder)
    trainer.fit(module, train, val)


def _mean_hops(model: Module, batch: Data) -> float | None:
    """How far the first mask of a model sees in a batch; None without a mask."""
    mask = next((part for part in model.modules() if isinstance(part, Mask)), None)
    return None if mask is None else float(mean_hops(reach(mask, batch, num_rows=16)).mean())


class _Stopwatch(pl.Callback):
    """Measures the seconds of training, validation and the rest, such as checkpoints, in all epochs but the first.

    Attributes:
        seconds: One number for each epoch and part.
        times: How many times the run has the batches of the trial, in training and in validation.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"train": [], "val": [], "rest": []}
        self.times = (1.0, 1.0)
        self._last = 0.0

    def _lap(self, part: str, epoch: int) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        before, self._last = self._last, _now()
        if epoch > 0:
            self.seconds[part].append(self._last - before)

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._lap("rest", trainer.current_epoch - 1)

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._lap("train", trainer.current_epoch)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        self._lap("val", trainer.current_epoch)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        self._lap("rest", trainer.current_epoch)


_now = time.perf_counter
