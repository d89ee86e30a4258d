"""Losses by their names in ``model.loss_fun``."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Task, metric_names


def cross_entropy(prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """Mean cross-entropy over the targets, over the known labels, or over the positions of a name."""
    if task.kind in ("multiclass", "subtoken"):
        return functional.cross_entropy(prediction.flatten(0, -2), target.flatten())
    known = ~target.isnan()
    return functional.binary_cross_entropy_with_logits(prediction[known], target[known])


def weighted_cross_entropy(prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """Cross-entropy; the weight of a class is the share of the batch's targets that belong to *other* classes.

    Reference: Dwivedi et al., *Benchmarking Graph Neural Networks*, arXiv:2003.00982, for PATTERN and CLUSTER. The
    weight of a class that is not in the batch is 0. For two classes the loss is the mean over all targets; for more
    classes it is the weighted sum divided by the sum of the weights.
    """
    labels = target.long()
    count = labels.bincount(minlength=task.num_classes)
    weight = (1 - count / labels.numel()) * (count > 0)
    weight = weight.to(prediction.dtype)
    if task.kind == "binary":
        return functional.binary_cross_entropy_with_logits(prediction, target, weight=weight[labels])
    if int((count > 0).sum()) == 1:  # all weights are 0, and the weighted mean would be 0 / 0
        return prediction.sum() * 0.0
    return functional.cross_entropy(prediction, labels, weight=weight)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "weighted_cross_entropy": weighted_cross_entropy,
    "l1": functional.l1_loss,
    "smoothl1": functional.smooth_l1_loss,
    "mse": functional.mse_loss,
}
"""Losses by name, called with results of ``Task.shaped`` and ``Task.target``, and, if they are of classes, the task."""


_FITTING = {
    "regression": ("l1", "smoothl1", "mse"),
    "binary": ("cross_entropy", "weighted_cross_entropy"),
    "multiclass": ("cross_entropy", "weighted_cross_entropy"),
    "multilabel": ("cross_entropy",),
    "subtoken": ("cross_entropy",),
}
"""Losses of each kind of task."""


def loss_problem(name: str, task: Task) -> str | None:
    """Why a loss does not fit a task; None if it does. Peers also train edges by distances of scores."""
    if name in _FITTING[task.kind] or (task.level == "edge" and is_distance(name)):
        return None
    needed = "numbers" if is_distance(name) else "classes"
    return f"{name} needs {needed}, and the task is {task.kind}; use {' or '.join(_FITTING[task.kind])}"


def is_distance(name: str) -> bool:
    """Whether a loss measures distances of numbers."""
    return name in _FITTING["regression"]


def task_loss(name: str | Callable[..., Tensor], prediction: Tensor, target: Tensor, task: Task) -> Tensor:
    """The loss of a batch; 0, with a gradient of zeros, if the batch has no known target.

    ``name`` may be a function of (predictions, targets).

    Raises:
        RunError: If this function returns a tensor with dimensions.
    """
    if target.numel() == 0 or (target.is_floating_point() and bool(target.isnan().all())):
        return torch.nan_to_num(prediction).sum() * 0.0
    if not isinstance(name, str):
        loss = name(prediction, target)
        if loss.dim() > 0:
            shape = list(loss.shape)
            raise RunError(f"loss: it must return one number, the mean over targets, of shape [] (got shape {shape})")
        return loss
    if is_distance(name):
        known = ~target.isnan()
        return LOSSES[name](prediction[known], target[known].to(prediction.dtype))
    return LOSSES[name](prediction, target, task)


def task_problems(loss: str | Callable[..., Tensor], metric: str, *tasks: Task) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a loss or metric that fits none of the possible tasks of some data."""
    wrong = [loss_problem(loss, task) if isinstance(loss, str) else None for task in tasks]
    names = {name for task in tasks for name in metric_names(task, metric)}
    problems = [("model.loss_fun", str(wrong[-1]))] if all(wrong) else []
    if metric not in names:
        problems.append(("metric_best", f"the task has no {metric!r}; there are {', '.join(sorted(names))}"))
    return problems
