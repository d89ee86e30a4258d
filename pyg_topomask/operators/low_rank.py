"""The mask that is a product of two thin matrices."""

import torch
from torch import Tensor

from pyg_topomask.checks import check_floating
from pyg_topomask.operators.base import MaskOperator, NonNegativeOperator
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout, cut_blocks
from pyg_topomask.ops.segment import check_batch, segment_linear_attention


class LowRankOperator(MaskOperator):
    r"""Mask with a known factorisation, :math:`M = L R^\top`, restricted to pairs of nodes in the same graph.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.4; Liutkus et al., *Relative Positional
    Encoding for Transformers with Linear Complexity*, ICML 2021, arXiv:2105.08399.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N r C)`.

    Args:
        left: Row factor, shape ``[N, r]``, or ``[H, N, r]`` for one mask per head.
        right: Column factor, same shape.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Raises:
        ValueError: If shapes disagree or ``batch`` is not sorted.
        TypeError: If the factors are not floating point.
    """

    def __init__(self, left: Tensor, right: Tensor, batch: Tensor | None = None) -> None:
        if left.dim() not in (2, 3) or left.shape != right.shape:
            raise ValueError(
                f"'left' and 'right' must both be [N, r] or [H, N, r] (got {list(left.shape)} and "
                f"{list(right.shape)}); are they from the same graph?"
            )
        check_floating("left", left)
        check_floating("right", right)
        self.num_nodes, self.heads = left.size(-2), left.size(0) if left.dim() == 3 else None
        if batch is not None:
            check_batch(batch, self.num_nodes)
        self.left, self.right, self.batch, self.numbers = left, right, batch, (left, right)
        self.num_multiply_adds, self.product_cost = 2 * self.num_nodes * left.size(-1), 0.1
        self.dtype, self.device = torch.promote_types(left.dtype, right.dtype), left.device

    @property
    def T(self) -> "LowRankOperator":
        return type(self)(self.right, self.left, self.batch)

    def _with(self, left: Tensor, right: Tensor) -> "LowRankOperator":
        return LowRankOperator(left, right, self.batch)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, lambda sizes: float(self.left.size(-1) * sum(n * n for n in sizes)))

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        left, right = (layout.groups.split(self._by_node(factor, self.dtype)) for factor in (self.left, self.right))
        blocks = [(b.transpose(1, 2) @ a.permute(0, 2, 3, 1)) for a, b in zip(left, right)]  # [g, H or 1, n, n]
        blocks = blocks if self.heads is not None else [block[:, 0] for block in blocks]
        return cut_blocks(blocks, torch.zeros_like(layout.block) if self.batch is None else self.batch, layout)

    def _matmul(self, x: Tensor) -> Tensor:
        values = x.reshape(self.num_nodes, -1, x.size(-1))
        left, right = (self._by_node(factor, x.dtype) for factor in (self.left, self.right))
        return segment_linear_attention(left, right, values, self.batch).view_as(x)

    def _by_node(self, factor: Tensor, dtype: torch.dtype) -> Tensor:
        return factor[:, None].to(dtype) if self.heads is None else factor.transpose(0, 1).to(dtype)


class PositiveLowRankOperator(NonNegativeOperator, LowRankOperator):
    """The mask of factors that hold no negative number, which is known without reading them."""
