"""The mode without training: evaluate a finished run."""

from __future__ import annotations

from collections.abc import Iterable

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from pyg_topomask.run.task import PARTS
from pyg_topomask.run.training.lightning_module import GraphModule


def evaluate(trainer: pl.Trainer, module: GraphModule, loaders: Iterable[DataLoader]) -> dict[str, float]:
    """Metrics of all three sets, without training."""
    metrics: dict[str, float] = {}
    for part, loader in zip(PARTS, loaders):
        trainer.test(module, loader, verbose=False)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics |= {name.replace("test_", f"{part}_", 1): value for name, value in values.items()}
    return metrics
