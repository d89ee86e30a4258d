"""A trial of one attention: a few epochs of the runner on a sample of the data, from small batches to full ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader

from pyg_topomask.run.advise.fit import estimate
from pyg_topomask.run.advise.sample import MOST_BATCHES, Sample, Size
from pyg_topomask.run.advise.stopwatch import Seconds, Step, Stopwatch
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.loaders import Served, Splits, build_splits, loaders, ready_loader
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.process_memory import limited_memory, peak_cuda_mib, peak_mib
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.trainer import build_trainer, quiet, uses_cuda
from pyg_topomask.run.user_modules import import_modules

SMALL = Size(4_096, 4_000_000)
"""A first batch is no larger than this."""

_GROWTH = 4.0  # of pairs of nodes, from one batch to the next
_PATIENCE = 5  # a step may take this many times the time of a trial
_MOST_EPOCHS = 30


@dataclass
class Trial:
    """What a trial has measured.

    Args:
        layer_type: ``gt.layer_type`` of the config that was tried.
        train: Training steps.
        val: Validation steps.
        fixed: What an epoch takes in addition to its steps.
        prepare: Seconds per node to compute encodings and to draw walks, edges and trees.
        stored: Bytes per node of what these add to the graphs.
        memory: Size of the largest batch of each pass, and the rise of the peak memory in MiB, of a GPU if it is used.
            Empty on systems where it cannot be measured.
        parameters: Number of parameters.
        is_full: Whether steps of full size were measured; if not, smaller ones.
        num_steps: Number of steps of an epoch, if the loader serves parts of a graph.
        num_val_steps: Number of steps of a validation in parts of a graph.
        problem: Why the attention cannot be used or does not fit into memory; empty if it can.
        note: Why there is no measurement of full size although it fits; empty if there is one.
    """

    layer_type: str = ""
    train: list[Step] = field(default_factory=list)
    val: list[Step] = field(default_factory=list)
    fixed: Seconds = field(default_factory=Seconds)
    prepare: Seconds = field(default_factory=Seconds)
    stored: float = 0.0
    memory: list[tuple[Size, float]] = field(default_factory=list)
    parameters: int = 0
    is_full: bool = False
    num_steps: int | None = None
    num_val_steps: int | None = None
    problem: str = ""
    note: str = ""


@dataclass(frozen=True)
class Limits:
    """What a trial may use: seconds, and MiB of memory."""

    seconds: float
    memory_mib: float


def run_trial(
    values: Mapping[str, Any], overrides: Sequence[str], modules: Sequence[str], sample: Sample, limits: Limits
) -> Trial:
    """Try a config on a sample; an attention that cannot be used gives a trial with its ``problem``.

    Args:
        values: The config.
        overrides: Settings that choose the attention.
        modules: The user's modules to import first.
        sample: The data.
        limits: Time and memory.
    """
    trial = Trial()
    try:
        import_modules(modules)
        with storage_errors(), quiet():
            config = check_config(values, overrides)[0].config
            trial.layer_type = config.gt.layer_type
            # Programs for CUDA reserve many times the address space that they use.
            with nullcontext() if uses_cuda(config) else limited_memory(limits.memory_mib):
                _grow(trial, _for_trial(config), sample, limits)
    except (RunError, ValueError, TypeError, RuntimeError) as error:
        trial.problem = str(error)
    return trial


def _for_trial(config: Config) -> Config:
    """The config with an evaluation in each epoch."""
    train = config.train.model_copy(update={"eval_period": 1, "ckpt_period": 10**6, "mode": "custom"})
    return config.model_copy(update={"train": train})


def _grow(trial: Trial, config: Config, sample: Sample, limits: Limits) -> None:
    """Measure larger and larger batches, up to full size or the limits."""
    begin = time.perf_counter()
    for share in _shares(config, sample):
        part = sample.shrunk(share)
        if trial.train:
            trial.problem = _too_large(trial, part.size(0), limits)
            trial.note = _too_slow(trial, part.size(0), limits)
            if trial.problem or trial.note:
                return
        _measure(trial, config, part, epochs=3 if share < 1 else 2)
    trial.is_full = True
    left = limits.seconds - (time.perf_counter() - begin)
    count = _num_batches(trial, sample, left)
    batches = sample.train[:count]
    largest = sample.size(-1)
    if len(sample.train) > 1 and not (_too_large(trial, largest, limits) or _too_slow(trial, largest, limits)):
        batches = [*batches[: max(1, count - 1)], sample.train[-1]]
    part = replace(sample, train=batches, val=sample.val[: max(1, count // 4)])
    spent = sum(step.seconds.wall for step in trial.train[-1:] + trial.val[-1:]) * len(batches)
    _measure(trial, config, part, epochs=min(_MOST_EPOCHS, max(4, int(left / max(spent, 1e-3)))), fresh=True)


def _shares(config: Config, sample: Sample) -> Iterator[float]:
    """Shares of a batch, growing to 1. Parts that the loader takes from a graph are small already."""
    size, shares = sample.size(0), [1.0]
    step = _GROWTH if sample.masks is None else _GROWTH**0.5
    in_parts = config.train.sampler != "full_batch"
    while not in_parts and (size.nodes * shares[0] > SMALL.nodes or _pairs(sample, shares[0]) > SMALL.pairs):
        shares.insert(0, shares[0] / step)
    yield from shares


def _pairs(sample: Sample, share: float) -> float:
    return sample.size(0).pairs * share ** (1 if sample.masks is None else 2)


def _too_large(trial: Trial, size: Size, limits: Limits) -> str:
    """Why a batch does not fit into memory; empty if it does."""
    memory = estimate(trial.memory, size) if trial.memory else 0.0
    if memory <= limits.memory_mib:
        return ""
    return f"a batch of {size.nodes:,} nodes needs about {memory / 1024:,.1f} GiB of memory"


def _too_slow(trial: Trial, size: Size, limits: Limits) -> str:
    """Why a batch is not tried that would fit; empty if it can be tried.

    After batches of one size, a step is expected to take at least as long as in proportion to the nodes.
    """
    points = [(step.size, step.seconds.wall) for step in trial.train]
    one, seconds = points[-1]
    several = len({size for size, _ in points}) > 1
    expected = estimate(points, size) if several else seconds * size.nodes / one.nodes
    if expected <= _PATIENCE * limits.seconds:
        return ""
    return f"not tried at full size, because a step takes about {expected:,.0f} s"


def _num_batches(trial: Trial, sample: Sample, seconds: float) -> int:
    """Number of batches that can be prepared and trained on four times in the time that is left."""
    step, size = trial.train[-1].seconds.wall, sample.size(0)
    each = trial.prepare.wall * size.nodes * 1.5 + 4 * step + trial.val[-1].seconds.wall
    return min(len(sample.train), max(2, int(seconds / max(each, 1e-4))))


def _measure(trial: Trial, config: Config, sample: Sample, epochs: int, fresh: bool = False) -> None:
    """Prepare and train on all batches of a sample, and add what it took.

    Args:
        trial: The result; its steps are replaced if ``fresh`` is true.
        config: The config.
        sample: The sample.
        epochs: Number of epochs; the first warms up.
        fresh: Whether these steps replace those of smaller batches.
    """
    torch.manual_seed(config.seed)
    begin = Seconds.now()
    splits, before = _prepared(config, sample)
    took, nodes = Seconds.now() - begin, sum(int(graph.num_nodes or 0) for graph in _all(splits))
    trial.prepare = Seconds(took.wall / nodes, took.processor / nodes)
    trial.stored = (sum(map(_bytes, _all(splits))) - before) / nodes
    watch = Stopwatch()
    largest = max(map(sample.size, range(len(sample.train))), key=lambda size: size.pairs)
    measure = peak_cuda_mib if uses_cuda(config) else peak_mib
    with tempfile.TemporaryDirectory() as folder:
        lengths = [len(graphs) for graphs in sample.train]
        peak = measure(lambda: _train(trial, config, splits, lengths, watch, Path(folder), epochs))
    trial.memory += [] if peak is None else [(largest, peak)]
    train, val = watch.steps("train"), watch.steps("val")
    trial.train, trial.val = (train, val) if fresh else (trial.train + train, trial.val + val)
    trial.fixed = watch.fixed()


def _prepared(config: Config, sample: Sample) -> tuple[Splits, int]:
    """The sample as a run prepares it, and its bytes before that."""
    graphs = [graph for graphs in (*sample.train, *sample.val) for graph in graphs]
    parts: Any = sample.masks
    if sample.masks is None:
        count = sum(map(len, sample.train))
        parts = (range(count), range(count, len(graphs)), [])
    else:
        graphs = graphs[:1]
    dataset = LoadedDataset(graphs, sample.task, None if sample.masks is not None else parts, sample.resample)
    steps = build_sampling_transforms(config, config.seed)
    size = sum(map(_bytes, graphs))
    return build_splits(config, dataset, graphs, parts, steps, cache=False), size


def _all(splits: Splits) -> list[Data]:
    return list(splits.train) if splits.is_one_graph else [*splits.train, *splits.val]


def _bytes(graph: Data) -> int:
    return sum(value.nbytes for value in graph.to_dict().values() if isinstance(value, Tensor))


def _train(
    trial: Trial, config: Config, splits: Splits, lengths: list[int], watch: Stopwatch, folder: Path, epochs: int
) -> None:
    """Train for some epochs as a run does."""
    optim = config.optim.model_copy(update={"max_epoch": epochs})
    sizes = (splits.in_channels, splits.task.num_outputs, splits.edge_channels, splits.task.level)
    config = sized(config.model_copy(update={"optim": optim}), *sizes)
    module = GraphModule(build_model(config, *sizes), config, splits.task, splits.data_format())
    trial.parameters = sum(parameter.numel() for parameter in module.model.parameters())
    callbacks = [EpochSeed(config.seed, 0, splits.set_epoch), Recorder(folder, config, lambda *_: None), watch]
    if splits.is_one_graph:
        train, val, _ = loaders(config, splits, config.seed)
        trial.num_steps = len(train) if config.train.sampler != "full_batch" else None
        trial.num_val_steps = len(val) if config.val.sampler != "full_batch" else None
    else:
        ends = list(accumulate(lengths))
        batches = [list(range(end - length, end)) for length, end in zip(lengths, ends)]
        served = Served(splits.train, splits.serve_transforms)
        train = GraphLoader(served, batch_sampler=batches, num_workers=config.num_workers)
        val = ready_loader(splits.val, config.train.batch_size)
    trainer = build_trainer(config, callbacks=callbacks, limit_train_batches=MOST_BATCHES, default_root_dir=folder)
    trainer.fit(module, train, val)
