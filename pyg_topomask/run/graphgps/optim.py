"""Optimisers and learning rate schedules by GraphGPS's names."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.nn import Module
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR, ReduceLROnPlateau

from pyg_topomask.nn import parameter_groups
from pyg_topomask.nn.parameter_groups import mask_parameters
from pyg_topomask.run.graphgps.config import Config

OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamW": AdamW, "adagrad": Adagrad, "sgd": SGD}
"""Optimisers by their names in ``optim.optimizer``."""


def build_optimizer(config: Config, model: Module) -> Optimizer:
    """The optimiser; weight decay is decoupled in AdamW and added to the gradient in all others.

    Masks have the learning rate of ``topomask.mask_lr``.
    """
    optim = config.optim
    momentum = {"momentum": optim.momentum} if optim.optimizer == "sgd" else {}
    cls: Callable[..., Optimizer] = OPTIMIZERS[optim.optimizer]
    mask_lr = config.topomask.mask_lr if mask_parameters(model) else None
    groups = parameter_groups(model, optim.base_lr, mask_lr, optim.weight_decay)
    return cls(groups, lr=optim.base_lr, weight_decay=optim.weight_decay, **momentum)


def learning_rate_factor(name: str, epoch: int, num_warmup_epochs: int, max_epoch: int, base_lr: float = 1.0) -> float:
    """GraphGPS's ``*_with_warmup``: linear from 0 (1e-6 in epoch 1) to 1, then down along half a cosine or a line.

    The line ends at 0 (``linear_with_warmup``) or at a learning rate of 1e-7 (``polynomial_with_warmup`` of power 1).
    """
    if epoch < num_warmup_epochs:
        return max(1e-6, epoch / num_warmup_epochs)
    progress = (epoch - num_warmup_epochs) / max(1, max_epoch - num_warmup_epochs)
    if name == "cosine_with_warmup":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
    if name == "linear_with_warmup":
        return max(0.0, 1.0 - progress)
    end = 1e-7 / base_lr
    return end + (1.0 - end) * max(0.0, 1.0 - progress)


def build_scheduler(config: Config, optimizer: Optimizer) -> LRScheduler | None:
    """The schedule, stepped once per epoch; a :class:`ReduceLROnPlateau` reads the validation loss."""
    optim, name = config.optim, config.optim.scheduler
    if name == "none":
        return None
    if name == "cos":
        return CosineAnnealingLR(optimizer, T_max=optim.max_epoch)
    if name == "step":
        return MultiStepLR(optimizer, milestones=optim.steps, gamma=optim.lr_decay)
    if name == "plateau":
        return ReduceLROnPlateau(optimizer, patience=optim.schedule_patience, factor=optim.lr_decay)
    if name == "reduce_on_plateau":
        return ReduceLROnPlateau(
            optimizer, patience=optim.schedule_patience, factor=optim.reduce_factor, min_lr=optim.min_lr
        )
    warmup, last, base_lr = optim.num_warmup_epochs, optim.max_epoch, optim.base_lr
    return LambdaLR(optimizer, lambda epoch: learning_rate_factor(name, epoch, warmup, last, base_lr))
