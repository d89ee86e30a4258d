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

    Raises:
        RuntimeError: If a module in training has a term without a gradient: one from a pass under ``torch.no_grad``,
            as reentrant checkpointing makes.
    """
    terms = []
    for part in module.modules():
        term = getattr(part, "auxiliary_loss", None)
        if not isinstance(term, Tensor):
            continue
        learns = part.training and all(parameter.requires_grad for parameter in part.parameters())
        if learns and torch.is_grad_enabled() and not term.requires_grad:
            raise RuntimeError(
                f"the auxiliary loss of {type(part).__name__} was computed without a gradient. Checkpoint with "
                "use_reentrant=False, and read it after a forward pass outside of torch.no_grad()"
            )
        terms.append(term)
    if terms:
        return torch.stack(terms).sum()
    parameter = next(module.parameters(), None)
    return torch.zeros((), device=None if parameter is None else parameter.device)
