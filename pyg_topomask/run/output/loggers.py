"""Loggers in addition to our own ``metrics.csv``: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from pyg_topomask.run.config import Config


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
