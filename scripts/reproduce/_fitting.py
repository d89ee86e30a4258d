"""Common parts of the scripts that build models themselves: training, and rows for equal epochs and equal time."""

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from _bench import machine, resumed
from _tables import Lines, positive, store, table_parser
from torch import Tensor
from torch.nn import Linear, Module, ReLU, Sequential
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv

from pyg_topomask.nn import parameter_groups

Batch = TypeVar("Batch")
Predict = Callable[[Any], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


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


def fit_graphs(
    model: Module, parts: Mapping[str, Any], predict: Predict, loss: Loss, error: Loss, size: int, **settings: Any
) -> dict[str, Any]:
    """Train on batches of graphs, as `fit` does; see there.

    Args:
        model: The model.
        parts: Graphs of ``"train"``, of another part for validation, and of ``"test"``, in this order.
        predict: Predictions for a batch.
        loss, error: That of a step and that of a whole part, of predictions and targets.
        size: Graphs in a batch.
        **settings: ``epochs``, ``rate`` and ``decay`` of `fit`.

    Returns:
        Errors of validation and test, seconds, and number of parameters.
    """
    train, val, test = (
        DataLoader(graphs, size, shuffle=name == "train", drop_last=name == "train") for name, graphs in parts.items()
    )

    @torch.no_grad()
    def error_of(part: DataLoader) -> float:
        model.eval()
        found, wanted = zip(*((predict(batch), batch.y) for batch in part))
        return float(error(torch.cat(found), torch.cat(wanted)))

    def loss_of(batch: Any) -> Tensor:
        return loss(predict(batch), batch.y)

    best, seconds = fit(model, lambda: train, loss_of, lambda: error_of(val), steps=len(train), **settings)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"val": best, "test": error_of(test), "seconds": seconds, "parameters": parameters}


def mlp(width: int) -> Module:
    """Two linear layers with ReLU between them."""
    return Sequential(Linear(width, width), ReLU(), Linear(width, width))


def gin(width: int) -> Module:
    """Message passing of GIN, with a hidden layer."""
    return GINConv(mlp(width))


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


def model_parser(doc: str | None, name: str, quick: str, methods: Iterable[str], epochs: int) -> ArgumentParser:
    """A parser with the options of the scripts that have rows for equal epochs and equal time."""
    made = table_parser(doc or "", name, quick)
    names = list(methods)
    made.add_argument("--methods", nargs="+", choices=names, default=names, help=f"rows; {names[0]} always")
    made.add_argument("--seeds", type=positive, default=5, help="runs of each row")
    made.add_argument("--epochs", type=positive, default=epochs, help="epochs of the first comparison")
    return made


def earlier(options: Namespace, *same: str) -> dict[str, Any]:
    """The report of an earlier run of which these settings were the same, or a new one. A trial is small."""
    if options.quick:
        options.seeds, options.epochs = 1, 2
    options.num_epochs = options.epochs
    settings = {name: getattr(options, name) for name in ("num_epochs", "quick", *same)}
    report = resumed(options.out / f"{options.name}.json", settings, "rows")
    return {"machine": machine()} | report | {"seeds": options.seeds}


def fill_rows(
    report: dict[str, Any],
    kind: Mapping[str, Any],
    key: str,
    part: str,
    train: Callable[[str, int, int], dict[str, Any]],
    first: str,
    lines: Lines,
    options: Namespace,
) -> None:
    """Make the runs that the rows of one kind of data lack in one part, as `fill_row` does. Store them after each run.

    Args:
        report: The report of `earlier`.
        kind: Entries of the kind's rows.
        key: Their place in the report, without the method.
        part: See `fill_row`.
        train: Trains a method for a number of epochs, with a seed.
        first: The row whose time the part ``"time"`` takes.
        lines: Those of the script.
        options: The command line.
    """
    for name in [first, *(name for name in options.methods if name != first)]:
        row = report["rows"].setdefault(f"{key}: {name}", {**kind, "method": name})
        save = partial(store, report, lines, options)
        fill_row(
            row, report["rows"][f"{key}: {first}"], part, partial(train, name), options.epochs, options.seeds, save
        )
        print(f"{key}, equal {part}, {name}: {mean_and_spread(row[part]['test'])}", flush=True)


def mean_and_spread(values: Sequence[float], places: int = 3) -> str:
    """Mean and standard deviation over seeds as text."""
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{spread}"
