"""Lightning's trainer with the settings of the runner, and loggers in addition to our own ``metrics.csv``."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy

from pyg_topomask.run.distributed import local_world_size, world_size
from pyg_topomask.run.training.settings import Training
from pyg_topomask.tensor_files import load_tensors, save_tensors


def uses_cuda(training: Training) -> bool:
    """Whether the model is trained on a GPU on this machine."""
    return training.accelerator != "cpu" and torch.cuda.is_available()


def device_problems(training: Training) -> list[tuple[str, str]]:
    """What the devices of this machine lack for the training, as pairs (key, message)."""
    problems = []
    if training.cuda_graphs:
        problems += [("train.cuda_graphs", f"{reason}; set it to false") for reason in _no_cuda_graphs(training)]
    if uses_cuda(training):
        return problems
    if training.accelerator in ("cuda", "gpu"):
        problems.append(("accelerator", "there is no CUDA device; use cpu or auto"))
    elif training.precision == "16-mixed":  # Lightning would train in bf16-mixed instead
        problems.append(("precision", "16-mixed needs a CUDA device; use bf16-mixed or 32-true"))
    return problems


def _no_cuda_graphs(training: Training) -> Iterator[str]:
    """Why the training cannot be captured."""
    if not uses_cuda(training):
        yield "there is no CUDA device"
    if "mixed" in training.precision:
        yield f"captured steps need precision 32-true or 64-true (got {training.precision})"
    if training.accumulation > 1:
        yield f"each step overwrites the gradients of the last (got optim.batch_accumulation {training.accumulation})"
    if world_size() > 1:
        yield f"captured steps run in one process (got {world_size()})"


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's plugin for files: writes checkpoints completely or not at all, and executes nothing from them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        save_tensors(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint onto the CPU."""
        return load_tensors(Path(path))


def build_trainer(training: Training, **more: Any) -> pl.Trainer:
    """Lightning's trainer, on the processes that ``torchrun`` started or on one device."""
    cuda = uses_cuda(training)
    settings: dict[str, Any] = {
        "max_epochs": training.epochs,
        "check_val_every_n_epoch": training.eval_period,
        "gradient_clip_val": training.clip,
        "accumulate_grad_batches": training.accumulation,
        "accelerator": training.accelerator,
        "devices": local_world_size(),
        "precision": training.precision,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "deterministic": "warn" if cuda else None,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "plugins": [CheckpointFiles()],
    }
    if world_size() > 1:
        # The module shares its buffers before an evaluation. A broadcast in each forward pass would never return if
        # one process had one more batch to evaluate than the others.
        strategy = DDPStrategy(broadcast_buffers=False, find_unused_parameters=False)
        nodes = world_size() // local_world_size()
        settings |= {"strategy": strategy, "num_nodes": nodes, "sync_batchnorm": cuda}
    return pl.Trainer(**settings | more)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Lightning's advice on devices, loader workers and logging, which the user cannot follow here."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=".*num_workers.*|.*infer the `batch_size`.*|.*LeafSpec.*")
        try:
            yield
        finally:
            logger.setLevel(level)
