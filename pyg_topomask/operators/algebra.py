"""Masks made of masks: scaled, summed, one per head, block by block, Kronecker products; products stay fast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from pyg_topomask.operators.base import MaskOperator, common_heads
from pyg_topomask.ops.blocks import BlockLayout, group_rows
from pyg_topomask.ops.sparse import Pattern


class _OneMask(MaskOperator):
    """A mask made of one other, whose nodes, support and cost it shares.

    Args:
        operator: The other mask.
    """

    def __init__(self, operator: MaskOperator) -> None:
        self.operator = operator
        self.num_nodes, self.heads, self.is_dense = operator.num_nodes, operator.heads, operator.is_dense
        self.dtype, self.device, self.has_blocks = operator.dtype, operator.device, operator.has_blocks

    @property
    def work(self) -> int:
        return self.operator.work

    @property
    def num_pairs(self) -> int | None:
        return self.operator.num_pairs


class ScaledOperator(_OneMask):
    """A mask times a number, written ``scale * op``.

    Args:
        operator: The mask.
        scale: A number or a tensor with one element, which may be learnable.

    Raises:
        ValueError: If ``scale`` has more than one element.
    """

    def __init__(self, operator: MaskOperator, scale: float | Tensor) -> None:
        if isinstance(scale, Tensor) and scale.numel() != 1:
            raise ValueError(f"a mask is scaled by one number (got a tensor of shape {list(scale.shape)})")
        super().__init__(operator)
        self.scale = scale.reshape(()) if isinstance(scale, Tensor) else scale

    @property
    def T(self) -> ScaledOperator:
        return ScaledOperator(self.operator.T, self.scale)

    def pairs(self) -> tuple[Pattern, Tensor]:
        pattern, value = self.operator.pairs()
        return pattern, self.scale * value

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        return [self.scale * block for block in self.operator.blocks(layout)]

    def to_dense(self) -> Tensor:
        return self.scale * self.operator.to_dense()

    def _matmul(self, x: Tensor) -> Tensor:
        return self.scale * (self.operator @ x)


class DiagonalScaledOperator(_OneMask):
    r"""A mask whose rows and columns are scaled, :math:`D_1 M D_2`.

    Args:
        operator: The mask :math:`M`.
        left, right: Diagonals, shape ``[N]``, or ``[N, H]`` where they differ by head.

    Raises:
        ValueError: If a diagonal is not for as many nodes, or heads differ.
    """

    def __init__(self, operator: MaskOperator, left: Tensor, right: Tensor) -> None:
        for name, diagonal in (("left", left), ("right", right)):
            if diagonal.dim() not in (1, 2) or diagonal.size(0) != operator.num_nodes:
                raise ValueError(
                    f"'{name}' must be [{operator.num_nodes}] or [{operator.num_nodes}, H] (got {list(diagonal.shape)})"
                )
        super().__init__(operator)
        self.left, self.right = left, right
        heads = [diagonal.size(1) if diagonal.dim() == 2 else None for diagonal in (left, right)]
        self.heads = common_heads([operator.heads, *heads])

    @property
    def T(self) -> DiagonalScaledOperator:
        return DiagonalScaledOperator(self.operator.T, self.right, self.left)

    def pairs(self) -> tuple[Pattern, Tensor]:
        pattern, value = self.operator.pairs()
        if self.heads is not None and value.dim() == 1:
            value = value[:, None]
        left, right = (
            pattern.arrange(diagonal).index_select(0, end)
            for diagonal, end in ((self.left, pattern.row), (self.right, pattern.col))
        )
        left, right = (x[:, None] if x.dim() < value.dim() else x for x in (left, right))
        return pattern, left * value * right

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        left, right = (
            group_rows(diagonal if self.heads is None or diagonal.dim() == 2 else diagonal[:, None], layout.groups)
            for diagonal in (self.left, self.right)
        )  # [g, n] or [g, H, n]
        blocks = self.operator.blocks(layout)
        if self.heads is not None and self.operator.heads is None:
            blocks = [block[:, None] for block in blocks]
        return [b[..., :, None] * block * a[..., None, :] for a, block, b in zip(left, blocks, right)]

    def to_dense(self) -> Tensor:
        left, right = (diagonal.t() for diagonal in (self.left, self.right))  # [N] or [H, N]
        return left[..., :, None] * self.operator.to_dense() * right[..., None, :]

    def _matmul(self, x: Tensor) -> Tensor:
        left, right = (self._aligned(diagonal, x) for diagonal in (self.left, self.right))
        x = right * x
        x = (self.operator @ x.flatten(1)).view_as(x) if self.operator.heads is None else self.operator @ x
        return left * x

    @staticmethod
    def _aligned(diagonal: Tensor, x: Tensor) -> Tensor:
        return diagonal.view(*diagonal.shape, *[1] * (x.dim() - diagonal.dim()))


class ConstantOperator(_OneMask):
    """A mask without learnable numbers, whose entries are computed once and then shared by layers and steps.

    Args:
        operator: The mask, made of tensors that require no gradient and are not changed in place.
    """

    def __init__(self, operator: MaskOperator) -> None:
        super().__init__(operator)
        self._blocks: tuple[BlockLayout, list[Tensor]] | None = None

    @property
    def T(self) -> MaskOperator:
        return self.operator.T

    @cached_property
    @torch.inference_mode(False)
    def _pairs(self) -> tuple[Pattern, Tensor]:
        with torch.no_grad():
            return self.operator.pairs()

    def pairs(self) -> tuple[Pattern, Tensor]:
        return self._pairs

    @torch.inference_mode(False)
    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        if self._blocks is None or self._blocks[0] is not layout:
            with torch.no_grad():
                self._blocks = (layout, [block.contiguous() for block in self.operator.blocks(layout)])
        return self._blocks[1]

    def to_dense(self) -> Tensor:
        return self.operator.to_dense()

    def _matmul(self, x: Tensor) -> Tensor:
        return self.operator @ x


class SumOperator(MaskOperator):
    """Sum of masks on the same nodes, written ``op + op``; one without heads is added to every head.

    Args:
        operators: The masks.

    Raises:
        ValueError: If they differ in nodes or heads.
    """

    def __init__(self, *operators: MaskOperator) -> None:
        if len({operator.num_nodes for operator in operators}) != 1:
            raise ValueError(f"masks to add must share their nodes (got {[op.num_nodes for op in operators]})")
        self.operators = operators
        self.num_nodes, self.heads = operators[0].num_nodes, common_heads([op.heads for op in operators])
        self.dtype, self.device = operators[0].dtype, operators[0].device

    @property
    def T(self) -> SumOperator:
        return SumOperator(*(operator.T for operator in self.operators))

    @property
    def work(self) -> int:
        return sum(operator.work for operator in self.operators)

    def to_dense(self) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*(operator.to_dense() for operator in self.operators))).sum(0)

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.stack([operator @ x for operator in self.operators]).sum(0)


class HeadStackOperator(MaskOperator):
    """One mask per head.

    Args:
        operators: ``H`` masks without heads, on the same nodes.

    Raises:
        ValueError: If there are none, if one has heads of its own, or if they differ in nodes.
    """

    def __init__(self, operators: Sequence[MaskOperator]) -> None:
        if not operators or any(operator.heads is not None for operator in operators):
            raise ValueError(f"a stack takes at least one mask, each without heads (got {list(operators)})")
        if len({operator.num_nodes for operator in operators}) != 1:
            raise ValueError(f"masks to stack must share their nodes (got {[op.num_nodes for op in operators]})")
        self.operators = list(operators)
        self.num_nodes, self.heads = operators[0].num_nodes, len(operators)
        self.dtype, self.device = operators[0].dtype, operators[0].device

    @property
    def T(self) -> HeadStackOperator:
        return HeadStackOperator([operator.T for operator in self.operators])

    @property
    def work(self) -> int:
        return sum(operator.work for operator in self.operators) // len(self.operators)

    def to_dense(self) -> Tensor:
        return torch.stack([operator.to_dense() for operator in self.operators])

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.stack([operator @ x[:, h] for h, operator in enumerate(self.operators)], dim=1)


class BlockDiagonalOperator(MaskOperator):
    """Masks of different graphs, one after the other: the mask of their batch.

    Args:
        operators: The masks; those without heads serve every head of the others.

    Raises:
        ValueError: If there are none, or if their numbers of heads differ.
    """

    def __init__(self, operators: Sequence[MaskOperator]) -> None:
        if not operators:
            raise ValueError("a block-diagonal mask takes at least one block (got none)")
        self.operators, self.sizes = list(operators), [operator.num_nodes for operator in operators]
        self.num_nodes, self.heads = sum(self.sizes), common_heads([op.heads for op in operators])
        self.dtype, self.device = operators[0].dtype, operators[0].device

    @property
    def T(self) -> BlockDiagonalOperator:
        return BlockDiagonalOperator([operator.T for operator in self.operators])

    @property
    def work(self) -> int:
        return sum(operator.work for operator in self.operators)

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.cat([operator @ block for operator, block in zip(self.operators, x.split(self.sizes))])


class KroneckerOperator(MaskOperator):
    r"""Kronecker product :math:`M = M_1 \otimes M_2`: node ``(i, j)`` of the product graph is ``i * N_2 + j``.

    Args:
        left, right: The factors' masks; one without heads serves every head of the other.

    Raises:
        ValueError: If their numbers of heads differ.
    """

    def __init__(self, left: MaskOperator, right: MaskOperator) -> None:
        self.left, self.right = left, right
        self.num_nodes, self.heads = left.num_nodes * right.num_nodes, common_heads([left.heads, right.heads])
        self.dtype, self.device = left.dtype, left.device

    @property
    def T(self) -> KroneckerOperator:
        return KroneckerOperator(self.left.T, self.right.T)

    @property
    def work(self) -> int:
        return self.left.work * self.right.num_nodes + self.right.work * self.left.num_nodes

    def _matmul(self, x: Tensor) -> Tensor:
        shape, outer, inner = x.shape, self.left.num_nodes, self.right.num_nodes
        x = x.reshape(outer, inner, self.heads or 1, x.size(-1))  # [N_1, N_2, H or 1, C]
        x = x.permute(1, 2, 0, 3).reshape(inner, x.size(2), outer * shape[-1])
        x = self._apply(self.right, x).view(inner, self.heads or 1, outer, shape[-1])
        x = x.permute(2, 1, 0, 3).reshape(outer, x.size(1), inner * shape[-1])
        x = self._apply(self.left, x).view(outer, self.heads or 1, inner, shape[-1])
        return x.transpose(1, 2).reshape(shape)

    @staticmethod
    def _apply(operator: MaskOperator, x: Tensor) -> Tensor:  # [n, H or 1, C]
        return operator @ x if operator.heads is not None else (operator @ x.flatten(1)).view_as(x)
