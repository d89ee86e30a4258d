"""The interface of masks that attention uses; operators have it, and plain tensors are wrapped."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.numerics import absolute, at_least_float32, non_negative, power_of_two
from pyg_topomask.ops.sparse import Combination, Pattern

# Pairs are listed up to this many per number that the mask stores, so that memory (about 100 bytes per pair) stays
# proportional to the stored numbers, even if every walk visits the same hub and the support is dense.
PAIRS_PER_NUMBER = 64


class AttentionMask(Protocol):
    """The part of :class:`~pyg_topomask.operators.MaskOperator` that attention uses; it is documented there."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def heads(self) -> int | None: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def has_blocks(self) -> bool: ...
    @property
    def shares_blocks(self) -> bool: ...
    @property
    def keeps_pairs(self) -> bool: ...
    @property
    def compiles_blocks(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def bound(self) -> AttentionMask: ...
    @property
    def rescaled(self) -> AttentionMask: ...
    @property
    def row_terms(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def error(self) -> float | Tensor: ...
    @property
    def num_multiply_adds(self) -> int: ...
    @property
    def num_pairs(self) -> int | None: ...
    @property
    def pairs_by_row(self) -> Tensor | None: ...
    def pairs(self) -> tuple[Pattern, Tensor]: ...
    def combined_pairs(self) -> tuple[Pattern, Combination] | None: ...
    def row_pairs(self, start: int, stop: int) -> tuple[Pattern, Tensor]: ...
    def blocks(self, layout: BlockLayout) -> list[Tensor]: ...
    def to_dense(self) -> Tensor: ...
    def __matmul__(self, x: Tensor) -> Tensor: ...


class TensorMask:
    """Mask from a tensor of shape ``[N, N]`` or ``[H, N, N]``. Raises ValueError for other shapes."""

    is_dense, has_blocks, shares_blocks, keeps_pairs, compiles_blocks = True, False, False, False, False
    num_pairs, pairs_by_row, error = None, None, 0.0

    def __init__(self, matrix: Tensor) -> None:
        if matrix.dim() not in (2, 3) or matrix.size(-1) != matrix.size(-2):
            raise ValueError(f"a mask must be [N, N] or [H, N, N] (got {list(matrix.shape)})")
        self.matrix = matrix if matrix.is_floating_point() else matrix.float()
        self.num_nodes = self.row_terms = matrix.size(-1)
        self.heads = matrix.size(0) if matrix.dim() == 3 else None
        self.eps, self.num_multiply_adds = torch.finfo(self.matrix.dtype).eps, self.num_nodes**2
        self.device = matrix.device

    @property
    def bound(self) -> TensorMask:
        """Mask of the absolute values; this mask itself if no entry is negative."""
        return self if non_negative(self.matrix) else TensorMask(absolute(self.matrix))

    @property
    def rescaled(self) -> TensorMask:
        """The mask with each row times a power of two, so that the sum of its absolute values lies near 1."""
        (size,) = at_least_float32(self.matrix.detach())
        mask = TensorMask(self.matrix * power_of_two(size.abs().sum(-1, keepdim=True)))
        mask.eps = self.eps
        return mask

    def pairs(self) -> tuple[Pattern, Tensor]:
        """Always refused: the support of a tensor is not computed."""
        raise ValueError("path 'pairwise' needs a sparse support, but the mask is a tensor; use path 'dense'")

    def combined_pairs(self) -> None:
        """Always :obj:`None`: there are no coefficients."""

    def row_pairs(self, start: int, stop: int) -> tuple[Pattern, Tensor]:
        """Always refused, as `pairs`."""
        return self.pairs()

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        """Always refused: a tensor is used as a whole."""
        raise ValueError("path 'blocks' needs each graph's own block, but the mask is a tensor; use path 'dense'")

    def to_dense(self) -> Tensor:
        """The tensor."""
        return self.matrix

    def __matmul__(self, x: Tensor) -> Tensor:
        if self.heads is None:
            return self.matrix.to(x.dtype) @ x
        return (self.matrix.to(x.dtype) @ x.transpose(0, 1)).transpose(0, 1)


def read_mask(mask: AttentionMask | Tensor, q: Tensor) -> AttentionMask:
    """Check the mask of attention with queries ``q`` ``[N, H, R]``; wrap it if it is a tensor.

    Raises:
        ValueError: If its number of nodes or heads differs from that of ``q``.
        TypeError: If it is neither an operator nor a tensor.
    """
    if isinstance(mask, Tensor):
        mask = TensorMask(mask)
    if not hasattr(mask, "num_multiply_adds"):
        raise TypeError(f"'mask' must be a MaskOperator or a tensor (got {type(mask).__name__})")
    if mask.num_nodes != q.size(0):
        raise ValueError(
            f"the mask is for {mask.num_nodes} nodes, but 'q' has {q.size(0)} rows; is it of another batch?"
        )
    if mask.heads is not None and mask.heads != q.size(1):
        raise ValueError(f"the mask has {mask.heads} heads, but 'q' has {q.size(1)}")
    return mask


def row_errors(mask: AttentionMask) -> Tensor | None:
    """Absolute error of the entries of each row, shape ``[N, H or 1]``; :obj:`None` if products are exact."""
    error = mask.error
    if isinstance(error, Tensor):
        return error.reshape(-1, 1).expand(mask.num_nodes, 1) if error.dim() < 2 else error
    return torch.full((mask.num_nodes, 1), error, device=mask.device) if error else None
