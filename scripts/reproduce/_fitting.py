"""Common parts of the scripts that build models themselves: training, and results as text."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import _bench  # noqa: F401  # says how OpenMP's threads wait, before torch is imported
import torch
from torch import Tensor
from torch.nn import Linear, Module, ReLU, Sequential
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv

from pyg_topomask.nn import GPSModel, parameter_groups

Batch = TypeVar("Batch")
Loss = Callable[[Tensor, Tensor], Tensor]


def begin(seed: int) -> None:
    """One thread, and draws that begin at a seed."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)


def order() -> torch.Generator:
    """A generator for the order of batches alone: rows of one seed see the same order, whatever their models draw.

    It begins at the seed of `begin`. First weights are shared only by rows whose models have the same layers.
    """
    return torch.Generator().manual_seed(torch.initial_seed())


def fit(
    model: Module,
    batches: Callable[[], Iterable[Batch]],
    loss: Callable[[Batch], Tensor],
    validate: Callable[[], float],
    epochs: int,
    steps: int,
    rate: float,
    decay: float,
    mask_lr: float | None = 25.0,
) -> dict[str, Any]:
    """Train by AdamW under a one-cycle schedule; the model ends as after its epoch of the least validation error.

    Args:
        model: The model.
        batches: Returns the batches of an epoch.
        loss: The loss of a batch.
        validate: Error on the validation set.
        epochs, steps: Number of epochs, and of steps in each.
        rate, decay: Largest learning rate, and weight decay.
        mask_lr: The factor of `parameter_groups` for the parameters of masks, which have no weight decay.

    Returns:
        The validation error (``"val"``), seconds of processor time of the training without validation, and number of
        parameters.
    """
    optimizer = torch.optim.AdamW(parameter_groups(model, rate, mask_lr, decay))
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
    return {"val": best, "seconds": seconds, "parameters": num_parameters(model)}


def num_parameters(model: Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def fit_graphs(
    model: GPSModel, parts: Mapping[str, Any], loss: Loss, error: Loss, size: int, **settings: Any
) -> dict[str, Any]:
    """Train on batches of graphs, as `fit` does; see there.

    Args:
        model: The model, which reads edge features if it has ``edge_dim``.
        parts: Graphs of ``"train"``, of another part for validation, and of ``"test"``, in this order.
        loss, error: That of a step and that of a whole part, of predictions and targets.
        size: Graphs in a batch.
        **settings: ``epochs``, ``rate``, ``decay`` and ``mask_lr`` of `fit`.

    Returns:
        What `fit` does, and the error on the test part.
    """
    train, val, test = (
        DataLoader(graphs, size, shuffle=name == "train", drop_last=name == "train", generator=order())
        for name, graphs in parts.items()
    )

    @torch.no_grad()
    def error_of(part: DataLoader) -> float:
        model.eval()
        found, wanted = zip(*((predict(model, batch), batch.y) for batch in part))
        return float(error(torch.cat(found), torch.cat(wanted)))

    def loss_of(batch: Any) -> Tensor:
        return loss(predict(model, batch), batch.y)

    found = fit(model, lambda: train, loss_of, lambda: error_of(val), steps=len(train), **settings)
    return found | {"test": error_of(test)}


def predict(model: GPSModel, batch: Any) -> Tensor:
    """Predictions for a batch."""
    edges = None if model.edge_encoder is None else batch.edge_attr
    return model(batch.x, batch.edge_index, batch.batch, batch, edges)


def mlp(width: int) -> Module:
    """Two linear layers with ReLU between them."""
    return Sequential(Linear(width, width), ReLU(), Linear(width, width))


def gin(width: int) -> Module:
    """Message passing of GIN, with a hidden layer."""
    return GINConv(mlp(width))


def mean_and_spread(values: Sequence[float], places: int = 3, scale: float = 1) -> str:
    """Mean and standard deviation of the sample over seeds as text, times a factor."""
    spread = f" ± {scale * statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):.{places}f}{spread}"
