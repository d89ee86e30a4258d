"""What modules add to the training loss."""

import torch
from torch import Tensor
from torch.nn import Module


def auxiliary_loss(module: Module) -> Tensor:
    """Sum of the loss terms that ``module`` and its submodules set in their last forward pass.

    A module contributes by setting its attribute ``auxiliary_loss`` to a scalar tensor in each forward pass. Gradient
    checkpointing needs ``use_reentrant=False``.

    Returns:
        A scalar; zero without a gradient if no module contributes.

    Raises:
        RuntimeError: If a module in training mode has a term without a gradient, because its last forward pass ran
            under ``torch.no_grad``, as reentrant checkpointing does.
    """
    terms: list[Tensor] = []
    for part in module.modules():
        term = getattr(part, "auxiliary_loss", None)
        # A wrapper, as of torch.compile, has the attributes of its module.
        if not isinstance(term, Tensor) or any(term is known for known in terms):
            continue
        learns = part.training and all(parameter.requires_grad for parameter in part.parameters())
        if learns and torch.is_grad_enabled() and not term.requires_grad:
            raise RuntimeError(
                f"the auxiliary loss of {type(part).__name__} was computed without a gradient. Run the forward pass "
                "outside torch.no_grad(), and checkpoint with use_reentrant=False"
            )
        terms.append(term)
    if terms:
        return torch.stack(terms).sum()
    parameter = next(module.parameters(), None)
    return torch.zeros((), device=None if parameter is None else parameter.device)
