"""Common parts of the scripts that build models themselves: training, and rows for equal epochs and equal time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from pyg_topomask.nn import parameter_groups

Batch = TypeVar("Batch")


def fit(
    model: Module,
    batches: Callable[[], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    validate: Callable[[], float],
    epochs: int,
    steps: int,
    rate: float,
    decay: float,
) -> tuple[float, float]:
    """Train by AdamW under a one-cycle schedule; the model ends as after its epoch of the least validation error.

    Parameters of masks have 25 times the learning rate and no weight decay (`parameter_groups`).

    Args:
        model: The model.
        batches: Returns the batches of an epoch.
        loss: The loss of a batch.
        validate: Error on the validation set.
        epochs, steps: Number of epochs, and of steps in each.
        rate, decay: Largest learning rate, and weight decay.

    Returns:
        The validation error, and seconds of processor time of the training without validation.
    """
    optimizer = torch.optim.AdamW(parameter_groups(model, rate, weight_decay=decay))
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, epochs * steps)
    best, kept, seconds = float("inf"), model.state_dict(), 0.0
    for _ in range(epochs):
        begin = time.process_time()
        model.train()
        for batch in batches():
            optimizer.zero_grad()
            loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        seconds += time.process_time() - begin
        model.eval()
        error = validate()
        if error < best:
            best, kept = error, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return best, seconds


def fill_row(
    row: dict[str, Any],
    first: Mapping[str, Any],
    part: str,
    train: Callable[[int, int], dict[str, Any]],
    epochs: int,
    seeds: int,
    save: Callable[[], None],
) -> None:
    """Make the runs that one part of a row lacks: ``"epochs"``, or ``"time"``, which needs all runs of ``"epochs"``.

    Args:
        row: The row. Its part has the number of epochs, and lists with a result of each seed.
        first: The row whose time the part ``"time"`` takes.
        part: One of `_tables.EQUAL`.
        train: Trains for a number of epochs, with a seed; its results include ``"seconds"``.
        epochs, seeds: Epochs of the first comparison, and number of seeds.
        save: Called after each run.
    """
    if part == "time":
        share = statistics.fmean(first["epochs"]["seconds"]) / statistics.fmean(row["epochs"]["seconds"])
        fitting = max(2, min(round(epochs * share), 10 * epochs))
        if fitting == epochs:
            row["time"] = row["epochs"]
        epochs = fitting
    found = row.setdefault(part, {"num_epochs": epochs})
    for seed in range(len(found.get("seconds", [])), seeds):
        for key, value in train(found["num_epochs"], seed).items():
            found.setdefault(key, []).append(value)
        save()
    save()


def mean_and_spread(values: Sequence[float], places: int = 3) -> str:
    """Mean and standard deviation over seeds as text."""
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{spread}"
