"""Predictions in the units of the targets."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module


class Scaled(Module):
    """``mean + std * module(…)``: a model or head that is trained on standardised targets and predicts plain ones.

    The runner of ``topomask`` fits it to the training targets and divides the loss's predictions and targets by
    ``std``, so that targets of unlike scale count alike. Metrics and predictions are in the units of the targets.

    Args:
        module: The model or head, whose output is ``[n, num_targets]``.
        num_targets: Number of targets.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, module: Module, num_targets: int) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.zeros(num_targets))
        self.register_buffer("std", torch.ones(num_targets))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output ``[n, num_targets]``, scaled."""
        return self.module(*args, **kwargs) * self.std + self.mean

    @property
    def is_fitted(self) -> bool:
        """Whether mean and deviation are other than 0 and 1."""
        return bool(self.mean.any()) or bool((self.std != 1).any())

    def fit(self, targets: Tensor) -> None:
        """Take mean and standard deviation (of the population) of targets ``[n, num_targets]`` without NaN.

        A constant target is only shifted.
        """
        targets = targets.double()
        mean = targets.nanmean(0).nan_to_num()
        std = (targets - mean).square().nanmean(0).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 1e-7 * mean.abs(), std, 1.0))
