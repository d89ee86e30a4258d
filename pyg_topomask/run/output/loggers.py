"""Loggers in addition to our own ``metrics.csv``: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from pyg_topomask.run.config import Config


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of results, such as W&B's own, has no origin


def build_loggers(config: Config, folder: Path, name: str, note: Callable[[str], None]) -> list[Logger]:
    """The loggers that the config requests; ``note`` is called with a message if one is not installed.

    Weights & Biases writes below the folder of the run; if ``$WANDB_MODE`` is ``offline``, it writes only there.
    """
    loggers: list[Logger] = []
    if config.tensorboard_each_run:
        if is_installed("tensorboard") or is_installed("tensorboardX"):
            loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
        else:
            note("note: tensorboard_each_run is true, but tensorboard is not installed; the run continues without it")
    if config.wandb.use:
        if is_installed("wandb"):
            loggers.append(_wandb(config, folder, name))
        else:
            note("note: wandb.use is true, but wandb is not installed; the run continues without it")
    return loggers


@contextmanager
def finishing(loggers: Sequence[Logger]) -> Iterator[None]:
    """On exit, finish the run of Weights & Biases, which would otherwise also get the curves of the next seed."""
    failed = 1
    try:
        yield
        failed = 0
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=failed)


def _wandb(config: Config, folder: Path, name: str) -> Logger:
    section = config.wandb
    more: dict[str, Any] = {"entity": section.entity} if section.entity else {}
    logger = WandbLogger(name=section.name or name, project=section.project, save_dir=str(folder), **more)
    logger.log_hyperparams(config.model_dump(mode="json"))
    return logger
