"""What modules add to the training loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module


def auxiliary_loss(module: Module) -> Tensor:
    """Sum of what the last forward pass of ``module`` and its submodules added to the loss.

    A module takes part by setting its attribute ``auxiliary_loss`` to a scalar tensor in each forward pass. Under
    gradient checkpointing use ``use_reentrant=False``, and under DDP ``find_unused_parameters=False``.

    Returns:
        A scalar; zero, without a gradient, where no module adds anything.
    """
    attributes = [getattr(part, "auxiliary_loss", None) for part in module.modules()]
    terms = [term for term in attributes if isinstance(term, Tensor)]
    if terms:
        return torch.stack(terms).sum()
    parameter = next(module.parameters(), None)
    return torch.zeros((), device=None if parameter is None else parameter.device)
