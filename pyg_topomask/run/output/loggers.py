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
    for key, wanted, packages in (
        ("tensorboard_each_run", config.tensorboard_each_run, ("tensorboard", "tensorboardX")),
        ("wandb.use", config.wandb.use, ("wandb",)),
    ):
        if wanted and not any(map(is_installed, packages)):
            note(f"note: {key} is true, but {packages[0]} is not installed; the run continues without it")
        elif wanted and key == "wandb.use":
            names = {"name": config.wandb.name or name, "entity": config.wandb.entity or None}
            settings: Any = names | {"project": config.wandb.project, "save_dir": str(folder)}
            loggers.append(WandbLogger(**settings))
            loggers[-1].log_hyperparams(config.model_dump(mode="json"))
        elif wanted:
            loggers.append(TensorBoardLogger(str(folder), name="", version="tensorboard"))
    failed = 1
    try:
        yield loggers
        failed = 0
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=failed)
