"""Groups of parameters for an optimizer, in which masks learn at their own rate."""

from typing import Any

from torch.nn import Module, Parameter

from pyg_topomask.nn.mask import Mask


def parameter_groups(
    model: Module, lr: float, mask_lr: float | None = 25.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups of parameters for a torch optimizer: those of masks learn faster and do not decay.

    A mask has few parameters, each of which concerns all pairs of nodes, and their initial values are far from where
    they end. At the rate of the model they hardly move: see "Several masks" on the page "Masked attention".

    .. code-block:: python

        optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=1e-2))

    Args:
        model: The model.
        lr: Learning rate of the model.
        mask_lr: Learning rate of masks relative to ``lr``; :obj:`None` trains them like the model, with weight decay.
        weight_decay: Weight decay of the model.

    Returns:
        The group of the model and, if it has masks with parameters, that of its masks; without frozen parameters.

    Raises:
        TypeError: If ``model`` is not a module.
    """
    if not isinstance(model, Module):
        raise TypeError(f"give the model, whose masks are looked for, not its parameters (got {type(model).__name__})")
    masks = {id(p) for p in mask_parameters(model)} if mask_lr is not None else set()
    trained = [p for p in model.parameters() if p.requires_grad]
    others, own = [p for p in trained if id(p) not in masks], [p for p in trained if id(p) in masks]
    groups = [{"params": others, "lr": lr, "weight_decay": weight_decay}]
    if mask_lr is not None and own:
        groups.append({"params": own, "lr": lr * mask_lr, "weight_decay": 0.0})
    return groups


def mask_parameters(model: Module) -> list[Parameter]:
    """The parameters of the masks in a model."""
    return [p for m in model.modules() if isinstance(m, Mask) for p in m.parameters()]
