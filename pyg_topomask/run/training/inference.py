"""Modes without training: evaluate a finished run, or write its predictions for OGB's hidden molecules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from pyg_topomask.run.data.formats.base import need
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.training.lightning_module import GraphModule

HIDDEN = {"val": "test-dev", "test": "test-challenge"}
"""OGB's names for the parts of ``PCQM4Mv2-inference``."""


def evaluate(trainer: pl.Trainer, module: GraphModule, loaders: Iterable[DataLoader]) -> dict[str, float]:
    """Metrics of all three sets, without training."""
    metrics: dict[str, float] = {}
    for part, loader in zip(PARTS, loaders):
        trainer.test(module, loader, verbose=False)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics |= {name.replace("test_", f"{part}_", 1): value for name, value in values.items()}
    return metrics


def write_submission(module: GraphModule, val: DataLoader, test: DataLoader, folder: Path) -> None:
    """Write predictions for PCQM4Mv2's hidden parts in OGB's file format."""
    evaluator: Any = need("ogb.lsc", "the submission").PCQM4Mv2Evaluator()
    for part, loader in (("val", val), ("test", test)):
        module.eval()
        with torch.no_grad():  # on the CPU; after an evaluation, Lightning has moved the module there
            found = [module.task.shaped(module(batch.to(module.device))).cpu() for batch in loader]
        predicted = torch.cat(found).clamp(0, 50).view(-1)  # the range of energy gaps
        evaluator.save_test_submission(input_dict={"y_pred": predicted}, dir_path=str(folder), mode=HIDDEN[part])
