"""Masks derived from another mask: with scaled rows and columns, or constant and cached."""

import torch
from torch import Tensor

from pyg_topomask.operators.base import ARITHMETIC, MaskOperator, common_heads, product_by_head
from pyg_topomask.ops.attention.mask import DenseBlocks, Rows, Support, evaluate, row_errors
from pyg_topomask.ops.blocks import BlockLayout, group_rows
from pyg_topomask.ops.memo import kept_property
from pyg_topomask.ops.native.loader import is_transformed
from pyg_topomask.ops.numerics import absolute, coarsest_eps, non_negative
from pyg_topomask.ops.segment import check_batch, segment_max
from pyg_topomask.ops.sparse import Pattern


class WrappedOperator(MaskOperator):
    """A mask that wraps another one and has its nodes, support, accuracy and cost.

    Args:
        operator: The wrapped mask.
    """

    def __init__(self, operator: MaskOperator) -> None:
        self.operator = operator
        self.num_nodes, self.heads, self.is_dense = operator.num_nodes, operator.heads, operator.is_dense
        self.dtype, self.device = operator.dtype, operator.device
        self.num_multiply_adds, self.product_cost = operator.num_multiply_adds, operator.product_cost

    @property
    def eps(self) -> float:
        return max(self.operator.eps, coarsest_eps(*self.numbers))

    @property
    def error(self) -> float | Tensor:
        return self.operator.error


class DiagonalScaledOperator(WrappedOperator):
    r"""A mask whose rows and columns are scaled, :math:`D_1 M D_2`.

    Args:
        operator: The mask :math:`M`.
        left, right: Diagonals, shape ``[N]``, or ``[N, H]`` if they differ by head; the identity if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. The :attr:`error` of a row of ``M``
            is scaled by the row's entry of ``left`` and by the largest entry of ``right`` in its graph.

    Raises:
        ValueError: If a diagonal or ``batch`` has another number of nodes, or heads differ.
    """

    def __init__(
        self,
        operator: MaskOperator,
        left: Tensor | None = None,
        right: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> None:
        super().__init__(operator)
        self.left, self.right, self.batch = left, right, batch
        self.numbers = tuple(diagonal for diagonal in (left, right) if diagonal is not None)
        if batch is not None:
            check_batch(batch, self.num_nodes)
        for name, diagonal in (("left", left), ("right", right)):
            if diagonal is not None and (diagonal.dim() not in (1, 2) or diagonal.size(0) != self.num_nodes):
                raise ValueError(
                    f"'{name}' must be [{self.num_nodes}] or [{self.num_nodes}, H] (got {list(diagonal.shape)})"
                )
        self.heads = common_heads([operator.heads, *(x.size(1) for x in self.numbers if x.dim() == 2)])

    @property
    def T(self) -> "DiagonalScaledOperator":
        return DiagonalScaledOperator(self.operator.T, self.right, self.left, self.batch)

    @property
    def bound(self) -> "DiagonalScaledOperator":
        bound = self.operator.bound
        if bound is self.operator and all(map(non_negative, self.numbers)):
            return self
        left, right = (None if x is None else absolute(x) for x in (self.left, self.right))
        return DiagonalScaledOperator(bound, left, right, self.batch)

    @property
    def error(self) -> float | Tensor:
        error = row_errors(self.operator)
        if error is None or self.num_nodes == 0:
            return 0.0
        left, right = (None if x is None else x.detach().abs()[:, None].flatten(1) for x in (self.left, self.right))
        if left is not None:
            error = left * error
        if right is None:
            return error
        return error * (right.amax(0) if self.batch is None else segment_max(right, self.batch)[self.batch])

    @property
    def support(self) -> Support | None:
        support = self.operator.support
        return support and Support(lambda rows: self._scale_pairs(support, rows), support.count, support.by_row)

    def _scale_pairs(self, support: Support, rows: Rows | None) -> tuple[Pattern, Tensor]:
        (pattern, entries), start = support.pairs(rows), 0 if rows is None else rows[0]
        value = evaluate(entries)
        if self.heads is not None and value.dim() == 1:
            value = value[:, None]
        left = None if self.left is None else pattern.arrange(self.left[start : start + pattern.num_rows])
        right = None if self.right is None else pattern.arrange(self.right)
        for diagonal, node in ((left, pattern.row), (right, pattern.col)):
            if diagonal is not None:
                scale = diagonal.index_select(0, node)
                value = (scale[:, None] if scale.dim() < value.dim() else scale) * value
        return pattern, value

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        blocks = self.operator.dense_blocks
        return blocks and DenseBlocks(lambda layout: self._scale_blocks(blocks, layout), blocks.work, blocks.shared)

    def _scale_blocks(self, of_operator: DenseBlocks, layout: BlockLayout) -> list[Tensor]:
        blocks = of_operator.make(layout)
        if self.heads is not None and self.operator.heads is None:
            blocks = [block[:, None] for block in blocks]
        for diagonal, axis in ((self.left, -2), (self.right, -1)):  # blocks are transposed
            if diagonal is not None and diagonal.size(0) > 0 and diagonal.stride(0) == 0:
                # One number: shared blocks stay.
                blocks = [block * diagonal[0].view(-1, 1, 1) for block in blocks]
            elif diagonal is not None:
                by_head = self.heads is not None and diagonal.dim() == 1
                parts = group_rows(diagonal[:, None] if by_head else diagonal, layout.groups)  # [g, n] or [g, H, n]
                blocks = [block * part.unsqueeze(axis) for block, part in zip(blocks, parts)]
        return blocks

    def to_dense(self) -> Tensor:
        dense = self.operator.to_dense()
        if self.left is not None:
            dense = self.left.t()[..., :, None] * dense
        return dense if self.right is None else dense * self.right.t()[..., None, :]

    def _matmul(self, x: Tensor) -> Tensor:
        x = x if self.right is None else self._aligned(self.right, x) * x
        product = product_by_head(self.operator, x)
        return product if self.left is None else self._aligned(self.left, x) * product

    @staticmethod
    def _aligned(diagonal: Tensor, x: Tensor) -> Tensor:
        return diagonal.view(*diagonal.shape, *[1] * (x.dim() - diagonal.dim()))


def scaled(operator: MaskOperator, scale: float | Tensor) -> DiagonalScaledOperator:
    """A mask times a number, written ``scale * op``.

    Args:
        operator: The mask.
        scale: A number or an integer tensor, which is rounded to the dtype of the mask, or a floating-point tensor,
            which may be learned. A tensor holds one number.

    Raises:
        ValueError: If a tensor has another number of elements.
    """
    if isinstance(scale, Tensor) and scale.numel() != 1:
        raise ValueError(f"a mask is scaled by one number (got a tensor of shape {list(scale.shape)})")
    own = isinstance(scale, Tensor) and scale.is_floating_point()
    factor = torch.as_tensor(scale, dtype=None if own else operator.dtype, device=operator.device)
    return DiagonalScaledOperator(operator, factor.reshape(1).expand(operator.num_nodes))


ARITHMETIC["scaled"] = scaled


class ConstantOperator(WrappedOperator):
    """A mask without learnable parameters, whose entries are computed once and then shared by layers and steps.

    Args:
        operator: The mask, made of tensors that require no gradient and are not changed in place.
    """

    def __init__(self, operator: MaskOperator) -> None:
        super().__init__(operator)
        self._blocks: tuple[BlockLayout, list[Tensor]] | None = None

    @property
    def T(self) -> MaskOperator:
        return self.operator.T

    @kept_property
    def bound(self) -> "ConstantOperator":
        with torch.no_grad():
            bound = self.operator.bound
        return self if bound is self.operator else ConstantOperator(bound)

    @property
    def support(self) -> Support | None:
        support = self.operator.support
        if support is None:
            return None
        return Support(
            lambda rows: self._pairs if rows is None else support.pairs(rows), support.count, support.by_row, True
        )

    @kept_property
    def _pairs(self) -> tuple[Pattern, Tensor]:
        support = self.operator.support
        assert support is not None
        with torch.no_grad():
            pattern, entries = support.pairs(None)
            return pattern, evaluate(entries)

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        blocks = self.operator.dense_blocks
        return blocks and DenseBlocks(lambda layout: self._kept_blocks(layout, blocks), shared=blocks.shared)

    @torch.inference_mode(False)
    def _kept_blocks(self, layout: BlockLayout, blocks: DenseBlocks) -> list[Tensor]:
        if self._blocks is None or self._blocks[0] is not layout:
            with torch.no_grad():
                made = [block.contiguous() for block in blocks.make(layout)]
            if is_transformed():  # they belong to the transform
                return made
            self._blocks = layout, made
        return self._blocks[1]

    def to_dense(self) -> Tensor:
        return self.operator.to_dense()

    def _matmul(self, x: Tensor) -> Tensor:
        return self.operator.product(x)
