"""How a model is trained."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_topomask.nn import parameter_groups

LOWER_IS_BETTER = ("loss", "mae", "mse", "rmse")
"""Metrics whose smallest value is best."""


def _adamw(model: Module) -> Optimizer:
    return AdamW(parameter_groups(model, 1e-3), lr=1e-3)


@dataclass(frozen=True)
class Training:
    """Loss, metric, optimiser and length of the training.

    Args:
        loss: Name of a loss, or a function of (predictions, targets) that returns its mean. ``"cross_entropy"``,
            ``"weighted_cross_entropy"``, ``"l1"``, ``"smoothl1"`` or ``"mse"``.
        metric: Validation metric that chooses the best epoch, such as ``"accuracy"``, ``"mae"`` or ``"loss"``.
        epochs: Number of epochs.
        optimizer: Makes the optimiser of a module; AdamW with a learning rate of 1e-3, and 25 times that for masks.
        scheduler: Makes the schedule of an optimiser, which is stepped after each epoch, or None; none if :obj:`None`.
            A ``ReduceLROnPlateau`` follows the validation loss.
        clip: Largest norm of the gradient; none if :obj:`None`.
        accumulation: Number of batches whose gradients are summed to one step.
        eval_period: Number of epochs between evaluations on the validation set.
        ckpt_period: Number of epochs between checkpoints that a run resumes from.
        patience: Number of epochs without a better ``metric`` after which training stops; 0: never.
        auxiliary: Weight of the auxiliary loss of attentions that have one.
        accelerator: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        precision: ``"32-true"``, ``"64-true"`` (a model of your own then needs features in float64), ``"bf16-mixed"``
            or ``"16-mixed"``.
        compile: Whether torch.compile compiles the model. One with a method ``plan(batch)`` becomes one graph, and the
            loader makes plans; others are compiled in parts.
        cuda_graphs: Whether forward and backward passes of the training are captured in CUDA graphs, one for each size
            of batches, which are padded to few sizes.
        inference: Whether the model is only evaluated, on all three sets.
        submission: Whether an evaluation also writes predictions in OGB's format for PCQM4Mv2.

    Raises:
        ValueError: If a number is out of range, or there would be no evaluation.
    """

    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy"
    metric: str = "loss"
    epochs: int = 100
    optimizer: Callable[[Module], Optimizer] = field(default_factory=lambda: _adamw)
    scheduler: Callable[[Optimizer], LRScheduler | None] | None = None
    clip: float | None = None
    accumulation: int = 1
    eval_period: int = 1
    ckpt_period: int = 10
    patience: int = 0
    auxiliary: float = 0.1
    accelerator: Any = "auto"
    precision: Any = "32-true"
    compile: bool = False
    cuda_graphs: bool = False
    inference: bool = False
    submission: bool = False

    def __post_init__(self) -> None:
        for name, least in (("accumulation", 1), ("ckpt_period", 1), ("patience", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"'{name}' must be at least {least} (got {getattr(self, name)})")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"'clip' must be positive; None clips nothing (got {self.clip})")
        if not (self.inference or 1 <= self.eval_period <= self.epochs):
            raise ValueError(f"'eval_period' must be from 1 to 'epochs' (got {self.eval_period} and {self.epochs})")

    @property
    def best_is_max(self) -> bool:
        """Whether the best epoch has the largest ``metric``."""
        return self.metric not in LOWER_IS_BETTER
