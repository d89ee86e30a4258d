"""A trial of one attention, in its own process: some epochs on a sample of the data, and what a run will take."""

import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch.callbacks import Timer
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from pyg_topomask import loader, nn, ops
from pyg_topomask.run.data.loaders import Served, Splits, loaders, prepare, ready_loader
from pyg_topomask.run.data.source import LoadedDataset, Serving
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.process_memory import peak_cuda_mib, peak_mib
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.trainer import build_trainer, quiet, uses_cuda
from pyg_topomask.run.user_modules import import_modules

MOST_BATCHES = 24
"""Training batches in a sample; a trial uses as many as its time allows."""

_EPOCHS = 2


@dataclass(frozen=True)
class Sample:
    """Graphs for trials, with the features that the model takes, and how much of the data they are.

    Args:
        dataset: The graphs of training batches and of a validation batch, or a single graph.
        parts: Numbers of the training and validation graphs, or masks of nodes for a single graph.
        batches: Numbers of the graphs of each training batch, the largest one first; empty for a single graph.
        steps: Number of training and validation batches of an epoch; those of a single graph depend on the loader.
        nodes: Nodes of all graphs.
    """

    dataset: LoadedDataset
    parts: tuple[Any, Any, Any]
    batches: list[list[int]]
    steps: tuple[int, int]
    nodes: int


def draw_sample(
    dataset: LoadedDataset, graphs: Sequence[Data], parts: tuple[Any, Any, Any], size: int, seed: int
) -> Sample:
    """Choose the batches of trials.

    Args:
        dataset: Gives the task.
        graphs: All graphs, with features.
        parts: Indices of the training, validation and test graphs, or masks of nodes for a single graph.
        size: Number of graphs in a batch.
        seed: Seed of the order of the graphs.
    """
    counts = [int(graph.num_nodes or 0) for graph in graphs]
    if dataset.is_one_graph:
        return Sample(replace(dataset, graphs=[graphs[0].clone()]), parts, [], (1, 1), counts[0])
    order = torch.randperm(len(parts[0]), generator=torch.Generator().manual_seed(seed))
    batches = [batch.tolist() for batch in torch.as_tensor(parts[0])[order].split(size)]
    largest = max(batches, key=lambda batch: sum(counts[i] ** 2 for i in batch))
    tried = [largest, *(batch for batch in batches if batch is not largest)][:MOST_BATCHES]
    # Copies share no storage with the data set, which would be sent to another process as a whole.
    copies = [graphs[i].clone() for batch in (*tried, parts[1][:size]) for i in batch]
    *taken, val = torch.arange(len(copies)).split([*map(len, tried), len(parts[1][:size])])
    numbers, steps = (torch.cat(taken), val, val[:0]), (len(batches), -(-len(parts[1]) // size))
    sample = replace(dataset, graphs=copies, parts=numbers)
    return Sample(sample, numbers, [batch.tolist() for batch in taken], steps, sum(counts))


@dataclass
class Trial:
    """What a run with an attention takes, as a trial predicts it.

    Args:
        epoch_s: Seconds per epoch, with evaluation.
        prepare_s: Seconds before the first epoch for encodings, walks, edges and trees.
        total_mib: Peak memory of the run in MiB, of its process or of tensors on the GPU; None if it is not known.
        step_mib: Rise of the peak memory in training in MiB, of a GPU if it is used; None if it cannot be measured.
        stored_mib: Memory of all graphs with what is added to them, in MiB.
        parameters: Number of parameters.
        hops: Mean number of hops that the mask of the first layer sees before training; None without a mask.
        problem: Why the attention cannot be used; empty if it can.
    """

    epoch_s: float = 0.0
    prepare_s: float = 0.0
    total_mib: float | None = None
    step_mib: float | None = None
    stored_mib: float = 0.0
    parameters: int = 0
    hops: float | None = None
    problem: str = ""


def run_trial(experiment: Experiment, sample: Sample, seconds: float) -> Trial:
    """Train on as many batches of a sample as the time allows, at least on the largest one.

    A model that refuses the data gives a trial with its ``problem``.

    Args:
        experiment: The experiment, whose data the sample replaces.
        sample: The data.
        seconds: Time for the training steps.
    """
    try:
        with storage_errors(), quiet():
            return _tried(experiment, sample, seconds)
    except (RunError, ValueError, TypeError, RuntimeError) as error:
        return Trial(problem=str(error))


def _tried(experiment: Experiment, sample: Sample, seconds: float) -> Trial:
    """Prepare the sample, train some epochs as a run does, and predict from what it took."""
    source, seed, eval_period = experiment.data, experiment.seed, experiment.training.eval_period
    changes: dict[str, Any] = {"epochs": _EPOCHS, "eval_period": 1, "ckpt_period": 10**6, "inference": False}
    training, begin = replace(experiment.training, **changes), time.perf_counter()
    torch.manual_seed(seed)
    graphs = list(sample.dataset.graphs)
    features = graphs, sample.parts, ()
    splits = prepare(source, sample.dataset, seed, source.draws(seed), features=features, cache=False)
    share = sample.nodes / sum(int(graph.num_nodes or 0) for graph in graphs)
    prepare_s = (time.perf_counter() - begin) * share
    prepared = splits.train if splits.is_one_graph else [*splits.train, *splits.val]
    stored = sum(x.nbytes for graph in prepared for x in graph.to_dict().values() if isinstance(x, Tensor))
    module = GraphModule(replace(experiment, training=training), splits)
    batches, steps = _loaders(source.serving, splits, sample, seed)
    hops = _mean_hops(module.model, next(iter(batches[0])))
    found: list[float] = []

    def train_twice() -> None:
        _train(module, batches, splits, seed, None)  # the first steps take longer
        found.extend(_train(module, batches, splits, seed, seconds))

    step_mib = (peak_cuda_mib if uses_cuda(training) else peak_mib)(train_twice)
    epoch_s = found[0] * steps[0] + found[1] * steps[1] / eval_period
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    return Trial(epoch_s, prepare_s, None, step_mib, stored * share / 2**20, parameters, hops)


def _loaders(
    serving: Serving, splits: Splits, sample: Sample, seed: int
) -> tuple[tuple[DataLoader, DataLoader], tuple[int, int]]:
    """Training batches, those of an evaluation, and how many such batches and evaluations an epoch of a run has."""
    if splits.is_one_graph:
        train, val, _ = loaders(serving, splits, seed)
        return (train, val), (len(train), 1)
    served = Served(splits.train, splits.serve_transforms)
    train = DataLoader(served, batch_sampler=sample.batches, num_workers=serving.num_workers, collate_fn=loader.collate)
    return (train, ready_loader(splits.val, serving.batch_size)), sample.steps


def _mean_hops(model: Module, batch: Data) -> float | None:
    """How far the first mask of a model sees in a batch; None without a mask."""
    mask = next((part for part in model.modules() if isinstance(part, nn.Mask)), None)
    return None if mask is None else float(ops.mean_hops(ops.reach(mask, batch, num_rows=16)).mean())


def _train(
    module: GraphModule, batches: tuple[DataLoader, DataLoader], splits: Splits, seed: int, seconds: float | None
) -> tuple[float, float]:
    """Seconds of a training batch, with a share of the checkpoints, and of an evaluation, in some epochs.

    Args:
        module: The model with its task.
        batches: Training batches, and those of an evaluation.
        splits: Gives the random draws of each epoch.
        seed: Seed of the training.
        seconds: Time after which training stops, with an evaluation; one batch in each epoch if :obj:`None`.
    """
    timer, most = Timer(None if seconds is None else timedelta(seconds=seconds)), MOST_BATCHES if seconds else 1
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), module.settings, lambda *_: None)
        callbacks = [EpochSeed(seed, 0, splits.set_epoch), timer, recorder]
        trainer = build_trainer(module.settings, callbacks=callbacks, limit_train_batches=most, default_root_dir=folder)
        trainer.fit(module, *batches)
    evaluation, count = timer.time_elapsed("validate"), trainer.fit_loop.epoch_loop.total_batch_idx + 1
    return (timer.time_elapsed("train") - len(recorder.rows) * evaluation) / count, evaluation  # of the last epoch


class ProcessFailedError(Exception):
    """The process ended without a result."""


def in_process(
    function: Callable[..., Any], *arguments: Any, timeout: float, mib: float | None = None, modules: Sequence[str] = ()
) -> Any:
    """Call a function in a new process, and return its result.

    The process is forked from one that has only imported what trials need. So it starts within milliseconds, and has no
    threads of OpenMP, which do not survive a fork. On Windows, it is started from the beginning.

    Args:
        function: A function of a module.
        *arguments: Its arguments, which are pickled.
        timeout: Seconds to wait.
        mib: Memory that it may add to what it starts with; no limit if :obj:`None`.
        modules: The user's modules, which it imports first.

    Raises:
        ProcessFailedError: If the process ends without a result, or takes too long and is ended.
    """
    windows = sys.platform == "win32"
    context: Any = multiprocessing.get_context("spawn" if windows else "forkserver")
    if not windows:
        context.set_forkserver_preload(["pyg_topomask.run.trials"])
    with futures.ProcessPoolExecutor(1, context, _start, (mib, modules)) as pool:
        # As bytes: torch would share the memory of each tensor by a file descriptor, and there are too few of them.
        answer = pool.submit(_call, function, pickle.dumps(arguments))
        try:
            return pickle.loads(answer.result(timeout))
        except futures.TimeoutError:
            raise ProcessFailedError(f"was stopped after {timeout:,.0f} s") from None
        except BrokenProcessPool:
            raise ProcessFailedError("ended without a result, most likely for lack of memory") from None
        except Exception as error:
            raise ProcessFailedError(f"{type(error).__name__}: {error}") from None
        finally:
            for process in list(pool._processes.values()):  # whatever it still does is not needed
                process.kill()


def _start(mib: float | None, modules: Sequence[str]) -> None:
    """Import modules, and let allocations fail that exceed the limit, where the system would end a process."""
    import_modules(modules)
    if mib is not None and psutil.LINUX:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + int(mib * 2**20), hard))


def _call(function: Callable[..., Any], arguments: bytes) -> bytes:
    return pickle.dumps(function(*pickle.loads(arguments)))
