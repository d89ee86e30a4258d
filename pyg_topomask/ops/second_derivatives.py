"""Gradients of compiled functions that can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients_in_torch(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    tensors: Sequence[Tensor | None],
    needed: Sequence[bool],
    grad: Tensor | tuple[Tensor, ...],
) -> list[Tensor | None]:
    """Gradients of a compiled function from the same function in plain torch, which can be differentiated again.

    Args:
        function: The function in plain torch; its arguments are views of ``tensors``.
        tensors: The arguments.
        needed: Whether the gradient of each argument is needed.
        grad: Gradient of the result, or of each result.

    Returns:
        A gradient for each argument; :obj:`None` where it is not needed or there is no argument.
    """
    views = [None if x is None else x.view_as(x) for x in tensors]  # the same tensor twice has two gradients
    device = (grad if isinstance(grad, Tensor) else grad[0]).device
    with torch.autocast(device.type, enabled=False):  # a backward pass may run inside of a region of autocast
        wanted = [x for x, needs in zip(views, needed) if needs and x is not None]
        found = iter(torch.autograd.grad(function(*views), wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if needs and x is not None else None for x, needs in zip(views, needed)]
