"""Masks that are made of other masks: weighted sums, and different masks for groups of heads."""

import reprlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.graph_attributes import batch_of, requirements_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators import (
    DiagonalScaledOperator,
    HeadStackOperator,
    MaskOperator,
    OnesOperator,
    ProductOperator,
    SumOperator,
)
from pyg_topomask.ops.attention.mask import row_sums
from pyg_topomask.ops.numerics import at_least_float32, bounded_exp

_LEAST_SUM = 1e-20  # of a row: the largest weight of a mask divided by it is still a number in float32


class JoinedMask(Mask):
    """Base of the masks that are made of other masks; :obj:`None` stands for ones within each graph."""

    def __init__(self, masks: Sequence[Module | None], heads: int = 1) -> None:
        super().__init__(heads)
        self.masks, self.requires = ModuleList(_parts(masks)), requirements_of(*masks)
        settings = (getattr(mask, "transform_settings", {}) for mask in self.masks)
        self.transform_settings = {key: value for each in settings for key, value in each.items()}

    def _operators(self, graph: Data) -> list[MaskOperator]:
        if graph is None:
            self.read(graph)  # the message names the transforms of all parts
        return [mask(graph) for mask in self.masks]


class MixtureMask(JoinedMask):
    r"""A sum of masks with learnable positive weights, :math:`M = \sum_s c_s\, \mathrm{diag}(B_s 1)^{-1} M_s`.

    Each mask is divided by the row sums of its bounding mask, so that its weight is its share of a row's mass. All
    weights are one at the start. Attention computes each mask's part with an engine of its own.

    Args:
        masks: The masks; :obj:`None` stands for ones within each graph.
        heads: Number of weights of each mask, one per head; 1 is one weight that all heads share.

    Shapes:
        - the parameter ``log_weights``: ``[number of masks, heads]``

    Raises:
        TypeError: If a mask is no module, or ``heads`` is not an integer.
        ValueError: If there is no mask.
    """

    def __init__(self, masks: Sequence[Module | None], heads: int = 1) -> None:
        super().__init__(masks, heads)
        self.log_weights = Parameter(torch.empty(len(self.masks), self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all weights to one, and the masks to their initial values."""
        super().reset_parameters()
        torch.nn.init.zeros_(self.log_weights)

    def forward(self, graph: Data) -> SumOperator:
        """The mask of a graph or batch that carries what the masks need."""
        weights = bounded_exp(*at_least_float32(self.log_weights))
        operators = self._operators(graph)
        scales = [weight / _row_sums(operator) for operator, weight in zip(operators, weights)]
        scales = [scale[:, 0] if scale.size(1) == 1 else scale for scale in scales]
        return SumOperator(*map(DiagonalScaledOperator, operators, scales))


class HeadMasks(JoinedMask):
    """Different masks for groups of heads.

    Args:
        masks: The masks; :obj:`None` stands for ones within each graph.
        mask_heads: Number of heads that each mask serves. A mask with one function per head has as many.

    Raises:
        TypeError: If a mask is no module, or a number is not an integer.
        ValueError: If there is no mask, or not one number for each.
    """

    def __init__(self, masks: Sequence[Module | None], mask_heads: Sequence[int]) -> None:
        super().__init__(masks)
        self.mask_heads = [check_integer("mask_heads", count, 1) for count in mask_heads]
        if len(self.mask_heads) != len(self.masks):
            raise ValueError(f"each of the {len(self.masks)} masks needs its number of heads (got {list(mask_heads)})")

    def forward(self, graph: Data) -> HeadStackOperator:
        """The mask of a graph or batch that carries what the masks need."""
        return HeadStackOperator(self._operators(graph), self.mask_heads)


class ProductMask(JoinedMask):
    """The matrix product of two masks, such as walks of one relation that continue in another one.

    Args:
        left, right: The masks. The product is unbiased if both are, and if they do not share walks.

    Raises:
        TypeError: If a mask is no module.
    """

    def __init__(self, left: Module, right: Module) -> None:
        super().__init__([left, right])

    def forward(self, graph: Data) -> ProductOperator:
        """The mask of a graph or batch that carries what the masks need."""
        return ProductOperator(*self._operators(graph))


class OnesMask(Mask):
    """Ones within each graph, as a part of other masks."""

    def forward(self, graph: Data) -> OnesOperator:
        """The mask of a graph or batch."""
        self.read(graph)
        return OnesOperator(batch_of(graph))


def joined_masks(
    mask: Module | Sequence[Module | None] | None, heads: int, mask_heads: Sequence[int] | None
) -> Module | None:
    """The mask that an attention with so many heads gets from its arguments ``mask`` and ``mask_heads``.

    Raises:
        TypeError: If ``mask`` is neither a module nor a list of modules.
        ValueError: If ``mask_heads`` is given without a list of masks, or does not add up to ``heads``, or a mask of a
            list has neither one head nor as many as it serves.
    """
    if mask is not None and not isinstance(mask, Module | list | tuple):
        raise TypeError(f"'mask' must be a module that builds a mask, such as GRFMask() (got {reprlib.repr(mask)})")
    if mask is None or isinstance(mask, Module):
        if mask_heads is not None:
            raise ValueError(f"'mask_heads' divides heads among a list of masks (got {mask!r} as 'mask')")
        return mask
    if mask_heads is not None and sum(mask_heads) != heads:
        raise ValueError(f"'mask_heads' must add up to the {heads} heads (got {list(mask_heads)})")
    joined = MixtureMask(mask, heads) if mask_heads is None else HeadMasks(mask, mask_heads)
    for part, served in zip(joined.masks, [heads] * len(mask) if mask_heads is None else mask_heads):
        own = getattr(part, "heads", 1)
        if own not in (1, served):
            raise ValueError(
                f"{type(part).__name__} has {own} heads, but serves {served} (all heads, or those in 'mask_heads'): "
                f"build it with heads={served}"
            )
    return joined


def _parts(masks: Sequence[Module | None]) -> list[Module]:
    for mask in masks:
        if mask is not None and not isinstance(mask, Module):
            raise TypeError(f"a part of a mask must be a module such as HopMask, or None (got {type(mask).__name__})")
    if not masks:
        raise ValueError("a mask needs at least one part (got none)")
    return [OnesMask() if mask is None else mask for mask in masks]


def _row_sums(operator: MaskOperator) -> Tensor:
    """Row sums of the bounding mask, ``[N, 1 or H]``; 1 for rows without entries, or with too small ones."""
    sums = row_sums(operator.bound)
    return torch.where(sums > _LEAST_SUM, sums, 1)
