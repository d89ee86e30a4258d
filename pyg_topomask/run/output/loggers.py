"""Loggers in addition to our own ``metrics.csv``: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from pyg_topomask.run.config import Config


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of results, such as W&B's own, has no origin


@contextmanager
def loggers_of(config: Config, folder: Path, name: str, note: Callable[[str], None]) -> Iterator[list[Logger]]:
    """The loggers that the config requests; ``note`` is called with a message if one is not installed.

    Weights & Biases writes below the folder of the run; if ``$WANDB_MODE`` is ``offline``, it writes only there. On
    exit, its run is finished, because it would otherwise also get the curves of the next seed.
    """
    loggers: list[Logger] = []
    if config.tensorboard_each_run and _has("tensorboard_each_run", "tensorboard", note):
        loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
    if not (config.wandb.use and _has("wandb.use", "wandb", note)):
        yield loggers
        return
    entity: Any = config.wandb.entity or None
    title, project = config.wandb.name or name, config.wandb.project
    wandb = WandbLogger(name=title, save_dir=str(folder), project=project, entity=entity)
    wandb.log_hyperparams(config.model_dump(mode="json"))
    failed = 1
    try:
        yield [*loggers, wandb]
        failed = 0
    finally:
        wandb.experiment.finish(exit_code=failed)


def _has(key: str, package: str, note: Callable[[str], None]) -> bool:
    found = is_installed(package)
    if not found:
        note(f"note: {key} is true, but {package} is not installed; the run continues without it")
    return found
