"""What every mask operator can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyg_topomask.operators.picture import MOST_NODES, as_html
from pyg_topomask.ops.attention.mask import AttentionMask, DenseBlocks, Product
from pyg_topomask.ops.blocks import BlockLayout, check_within_graphs, column_blocks, identity_columns
from pyg_topomask.ops.memo import cached
from pyg_topomask.ops.numerics import absolute, at_least_float32, coarsest_eps, non_negative
from pyg_topomask.ops.sparse import Pattern

if TYPE_CHECKING:
    from typing_extensions import Self

ARITHMETIC: dict[str, Callable[..., MaskOperator]] = {}
"""Classes that ``+`` and ``*`` build, by name. Their files import this one, so they register themselves here."""


class MaskOperator(AttentionMask, ABC):
    r"""One ``N × N`` mask, or one per head, that is defined by its product with a matrix.

    A subclass sets `num_nodes`, `dtype` and `device`, perhaps `heads`, `num_multiply_adds` and `numbers`, and defines
    `_matmul`, `T` and, for use in attention, `bound`, or `_with`, by which `bound` makes numbers absolute. The product
    is differentiable in ``x`` and in every floating-point argument, because it uses plain torch operations or
    `torch.autograd.Function`\ s. Row ``i``, column ``j`` is the weight with which node ``i`` reads node ``j``.

    .. code-block:: python

        class ShiftOperator(MaskOperator):
            \"\"\"Node ``i`` takes ``weight`` times the value of node ``i - 1``.\"\"\"

            def __init__(self, num_nodes: int, weight: Tensor, step: int = 1) -> None:
                self.num_nodes, self.step = num_nodes, step
                self.weight, self.numbers = weight, (weight,)
                self.dtype, self.device = weight.dtype, weight.device

            def _with(self, weight: Tensor, sign: int = 1) -> MaskOperator:
                return ShiftOperator(self.num_nodes, weight, sign * self.step)

            @property
            def T(self) -> MaskOperator:
                return self._with(self.weight, -1)

            def _matmul(self, x: Tensor) -> Tensor:
                return self.weight * x.roll(self.step, 0)

    An operator may keep what it has computed from arguments that require gradients. A second backward pass through it
    then needs ``retain_graph=True``, or a new operator; mask modules build one in each forward pass.

    `pyg_topomask.testing.OperatorCase` checks a new operator.
    """

    is_dense, product_cost = False, 1.0  # what `Product` says of them
    numbers: tuple[Tensor, ...] = ()
    """The numbers from which the entries are computed, for `eps` and for `bound` if the subclass does not define it."""
    _with: Callable[..., MaskOperator]
    """Makes the same mask of other `numbers`."""

    @property
    @abstractmethod
    def T(self) -> MaskOperator:
        """The transposed mask."""

    @property
    def bound(self) -> MaskOperator:
        r"""The bounding mask, with entries :math:`B_{ij} \ge |M_{ij}|`, by which attention under this mask normalises.

        It has the same structure, cost, and pairs in the same order as this mask. It is the mask itself if no parameter
        is negative, and ``op.T.bound`` equals ``op.bound.T``. Absolute values of parameters are computed by
        `pyg_topomask.ops.numerics.absolute`, whose derivative at 0 is +1, so that the gradient is continuous where a
        parameter starts at 0.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        if self.numbers:
            return self if all(map(non_negative, self.numbers)) else self._with(*map(absolute, self.numbers))
        raise NotImplementedError(
            f"{type(self).__name__} has no bounding mask, which attention normalises by. Define the property 'bound' "
            "that returns an operator with entries B_ij >= |M_ij|: 'return self' if no entry is ever negative, else "
            "the same operator with absolute parameters"
        )

    @property
    def eps(self) -> float:
        return max(torch.finfo(self.dtype).eps, coarsest_eps(*self.numbers))

    def _blocks_by_product(
        self,
        pattern: Pattern,
        known: Callable[[BlockLayout], list[Tensor] | None] = lambda layout: None,
        share: float = 1.0,
    ) -> DenseBlocks:
        """The blocks as one product, for a mask of a graph with the edges of ``pattern``.

        ``known`` may have a faster way to the blocks ``[g, H or 1, n, n]``, with this share of the multiply-adds.
        """

        def make(layout: BlockLayout) -> list[Tensor]:
            found = known(layout)
            if found is not None:
                return found if self.heads is not None else [block[:, 0] for block in found]
            check_within_graphs(layout, pattern.row, pattern.col)
            eye = identity_columns(layout, self.dtype)
            return column_blocks(
                layout, self.product(eye if self.heads is None else eye[:, None].expand(-1, self.heads, -1))
            )

        return DenseBlocks(make, lambda sizes: share * self.num_multiply_adds * max(sizes, default=0))

    def times(self, other: MaskOperator) -> MaskOperator | None:
        """The matrix product with another mask, if it is one mask of the same kind; else :obj:`None`, as by default."""
        return None

    @abstractmethod
    def _matmul(self, x: Tensor) -> Tensor:
        """Product with ``x`` of shape ``[N, C]``, or ``[N, H, C]`` if the mask has heads."""

    @cached
    def num_multiply_adds(self) -> int:
        """Multiply-adds of ``op @ x`` for one column of one head.

        A subclass sets it. The default is ``N²``, the cost of a product with the dense matrix.
        """
        return self.num_nodes**2

    def contract(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """What `Product` calls ``contract``."""
        return None

    @property
    def product(self) -> Product:
        return Product(
            self._apply, lambda: self.num_multiply_adds, self.product_cost, self.contract, stored=self.is_dense
        )

    def _apply(self, x: Tensor) -> Tensor:
        """Product ``op @ x`` with ``x`` of shape ``[N, *]``, or ``[N, H, *]`` if the mask has heads; the same shape.

        Half precision is widened for the product, as under autocast.

        Raises:
            TypeError: If ``x`` is not a floating-point tensor.
            ValueError: If ``x`` has another number of nodes or heads.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            given = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"a mask multiplies a floating-point tensor (got {given}); ProductOperator joins two masks")
        lead = (self.num_nodes,) if self.heads is None else (self.num_nodes, self.heads)
        if x.dim() < len(lead) or tuple(x.shape[: len(lead)]) != lead:
            wanted = "[N, *]" if self.heads is None else "[N, H, *]"
            raise ValueError(
                f"a mask of {self.num_nodes} nodes"
                + (f" and {self.heads} heads" if self.heads is not None else "")
                + f" multiplies {wanted} (got {list(x.shape)}); is 'x' from the same batch?"
            )
        if x.numel() == 0:
            return x.clone()
        (wide,) = at_least_float32(x)
        with torch.autocast(x.device.type, enabled=False):
            product = self._matmul(wide.reshape(*lead, prod(x.shape[len(lead) :])))
        return product.reshape(x.shape).to(x.dtype)

    def to_dense(self) -> Tensor:
        """The matrix itself, ``[N, N]`` or ``[H, N, N]``; it takes ``O(N²)`` memory and is meant for tests and
        plots.
        """
        eye = torch.eye(self.num_nodes, dtype=self.dtype, device=self.device)
        if self.heads is None:
            return self.product(eye)
        return self.product(eye[:, None].expand(-1, self.heads, -1)).transpose(0, 1)

    def __add__(self, other: MaskOperator) -> MaskOperator:
        return ARITHMETIC["sum"](self, other) if isinstance(other, MaskOperator) else NotImplemented

    def __mul__(self, other: float | Tensor | MaskOperator) -> MaskOperator:
        if isinstance(other, MaskOperator):
            return ARITHMETIC["entrywise"](self, other)
        return ARITHMETIC["scaled"](self, other) if isinstance(other, (int, float, Tensor)) else NotImplemented

    __rmul__ = __mul__

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads={self.heads}"
        return f"{type(self).__name__}(num_nodes={self.num_nodes}{heads})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the matrix of each head as a small picture, or the name of a mask of many nodes."""
        if not 0 < self.num_nodes <= MOST_NODES:
            return f"<code>{self!r}</code>"
        with torch.no_grad():
            dense = self.to_dense().float().cpu()
        return as_html(repr(self), dense if dense.dim() == 3 else dense[None])


class SymmetricOperator(MaskOperator):
    """A mask that is its own transpose."""

    @property
    def T(self) -> Self:
        return self


class NonNegativeOperator(MaskOperator):
    """A mask that never has a negative entry, and is therefore its own bounding mask."""

    @property
    def bound(self) -> Self:
        return self


def product_by_head(operator: MaskOperator, x: Tensor) -> Tensor:
    """Product with ``x`` ``[N, C]`` or ``[N, H, C]``; a mask without heads is used for every head."""
    return operator.product(x) if operator.heads is not None else operator.product(x.flatten(1)).view_as(x)


def common_nodes(operators: Sequence[MaskOperator], purpose: str) -> int:
    """Common number of nodes of masks. Raises ValueError if the numbers differ."""
    sizes = [operator.num_nodes for operator in operators]
    if any(size != sizes[0] for size in sizes):
        raise ValueError(f"masks to {purpose} must share their nodes (got {sizes})")
    return sizes[0]


def common_heads(heads: list[int | None]) -> int | None:
    """Common number of heads of masks; those without heads fit every head. Raises ValueError if the numbers differ."""
    given = {count for count in heads if count is not None}
    if len(given) > 1:
        raise ValueError(f"masks with different numbers of heads cannot be combined (got {sorted(given)})")
    return given.pop() if given else None
