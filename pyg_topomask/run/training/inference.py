"""Modes without training: evaluate a finished run, or write its predictions for OGB's hidden molecules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from pyg_topomask.run.data.formats.base import need
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


@torch.no_grad()
def write_submission(module: GraphModule, loaders: Iterable[DataLoader], folder: Path) -> None:
    """Write the predictions for PCQM4Mv2's hidden parts, test-dev and test-challenge, in OGB's file format."""
    evaluator = need("ogb.lsc", "the submission").PCQM4Mv2Evaluator()
    module.eval()
    for part, loader in zip(("test-dev", "test-challenge"), loaders):
        found = [module.task.shaped(module(batch.to(module.device))).view(-1).cpu() for batch in loader]
        predicted = torch.cat(found).clamp(0, 50)  # the range of energy gaps
        evaluator.save_test_submission(input_dict={"y_pred": predicted}, dir_path=str(folder), mode=part)
