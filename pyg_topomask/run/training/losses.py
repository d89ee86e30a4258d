"""Losses by the name that ``model.loss_fun`` gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch.nn import functional

from pyg_topomask.run.task import Task


def cross_entropy(prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """Mean cross-entropy: over classes, over the labels that are known, or over the places of a sequence."""
    if task.kind in ("multiclass", "subtoken"):
        return functional.cross_entropy(prediction.flatten(0, -2), target.flatten())
    known = ~target.isnan()
    return functional.binary_cross_entropy_with_logits(prediction[known], target[known])


def weighted_cross_entropy(prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """Cross-entropy with each class weighted by the share of the batch's targets that are *not* of it.

    Reference: Dwivedi et al., *Benchmarking Graph Neural Networks*, arXiv:2003.00982, for PATTERN and CLUSTER. The
    weight of a class is 0 where the batch has none of it. Two classes: the mean over all targets; more: the weighted
    mean, divided by the sum of weights.
    """
    if task.kind not in ("binary", "multiclass"):
        raise ValueError(f"weighted_cross_entropy needs classes (got a {task.kind} task)")
    labels = target.long()
    count = labels.bincount(minlength=task.num_classes)
    weight = (1 - count / labels.numel()) * (count > 0)
    weight = weight.to(prediction.dtype)
    if task.kind == "binary":
        return functional.binary_cross_entropy_with_logits(prediction, target, weight=weight[labels])
    if int((count > 0).sum()) == 1:  # all weights are 0: the weighted mean would be 0 / 0
        return prediction.sum() * 0.0
    return functional.cross_entropy(prediction, labels, weight=weight)


def _error(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Task], Tensor]:
    """A loss of the differences, over the targets that are known; a class is the number 1 in a row of zeros."""

    @wraps(function)  # so that `topomask list` names it
    def loss(prediction: Tensor, target: Tensor, task: Task) -> Tensor:
        if task.kind == "multiclass":
            target = functional.one_hot(target, task.num_outputs)
        target = target.to(prediction.dtype)
        known = ~target.isnan()
        return function(prediction[known], target[known])

    return loss


LOSSES: dict[str, Callable[[Tensor, Tensor, Task], Tensor]] = {
    "cross_entropy": cross_entropy,
    "weighted_cross_entropy": weighted_cross_entropy,
    "l1": _error(functional.l1_loss),
    "smoothl1": _error(functional.smooth_l1_loss),
    "mse": _error(functional.mse_loss),
}
"""Name -> loss, called as ``loss(prediction, target, task)`` with what ``Task.shaped`` and ``Task.target`` return."""


def loss_problem(name: str, task: Task) -> str | None:
    """Why a loss cannot serve a task, if it cannot."""
    if name not in LOSSES:
        return f"no loss is called {name!r}; there are {', '.join(LOSSES)}"
    if name == "weighted_cross_entropy" and task.kind not in ("binary", "multiclass"):
        return f"weighted_cross_entropy needs classes, and the task is {task.kind}"
    if name == "cross_entropy" and task.kind == "regression":
        return "cross_entropy needs classes, and the task is regression; use l1, smoothl1 or mse"
    if task.kind == "subtoken" and name != "cross_entropy":
        return f"a sequence of words needs cross_entropy (got {name!r})"
    return None


def task_loss(name: str, prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """The loss of a batch; 0, with a gradient of zeros, where the batch has no target at all."""
    if target.numel() == 0 or (target.is_floating_point() and bool(target.isnan().all())):
        return torch.nan_to_num(prediction).sum() * 0.0
    return LOSSES[name](prediction, target, task)
