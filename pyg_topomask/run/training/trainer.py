"""Lightning's trainer with the settings of the runner, and loggers in addition to our own ``metrics.csv``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy

from pyg_topomask.run.distributed import local_world_size, world_size
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.tensor_files import load_tensors, save_tensors


def uses_cuda(config: Config) -> bool:
    """Whether a config trains on a GPU on this machine."""
    return config.accelerator != "cpu" and torch.cuda.is_available()


def device_problems(config: Config) -> list[tuple[str, str]]:
    """What the devices of this machine lack for training with a config, as pairs (key, message)."""
    if uses_cuda(config):
        return []
    problems = []
    if config.accelerator in ("cuda", "gpu"):
        problems.append(("accelerator", "there is no CUDA device; use cpu or auto"))
    elif config.precision == "16-mixed":  # Lightning would train in bf16-mixed instead
        problems.append(("precision", "16-mixed needs a CUDA device; use bf16-mixed or 32-true"))
    return problems


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's plugin for files: writes checkpoints completely or not at all, and executes nothing from them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        save_tensors(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint onto the CPU."""
        return load_tensors(Path(path))


def build_trainer(config: Config, **more: Any) -> pl.Trainer:
    """Lightning's trainer, on the processes that ``torchrun`` started or on one device."""
    cuda = uses_cuda(config)
    settings: dict[str, Any] = {
        "max_epochs": config.optim.max_epoch,
        "check_val_every_n_epoch": config.train.eval_period,
        "gradient_clip_val": config.optim.clip_grad_norm_value if config.optim.clip_grad_norm else None,
        "accumulate_grad_batches": config.optim.batch_accumulation,
        "accelerator": config.accelerator,
        "devices": local_world_size(),
        "precision": config.precision,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "deterministic": "warn" if cuda else None,
        "logger": False,
        "enable_checkpointing": True,
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


def loggers_of(config: Config, folder: Path, name: str, note: Callable[[str], None]) -> list[Logger]:
    """The loggers that the config requests; ``note`` is called with a message if one is not installed.

    Weights & Biases writes below the folder of the run; if ``$WANDB_MODE`` is ``offline``, it writes only there.
    """
    made: list[Callable[[], Logger]] = []
    if config.tensorboard_each_run:
        made.append(partial(TensorBoardLogger, str(folder), name="", version="tensorboard"))
    if config.wandb.use:
        given: dict[str, Any] = {"project": config.wandb.project, "entity": config.wandb.entity or None}
        values = config.model_dump(mode="json")
        made.append(partial(WandbLogger, config.wandb.name or name, str(folder), config=values, **given))
    loggers = []
    for make in made:
        try:
            loggers.append(make())
        except ModuleNotFoundError as error:
            note(f"note: the run continues without a logger that is not installed: {error}")
    return loggers
