"""What attention asks of a mask, which operators answer and a plain tensor is made to."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyg_topomask.ops.blocks import BlockLayout, count_block_entries
from pyg_topomask.ops.numerics import absolute, non_negative
from pyg_topomask.ops.sparse import Pattern

# Entries of dense blocks for each number that a mask stores, up to which blocks are taken. A pair in a block costs a
# fifth to a tenth of one in a sparse pattern, and no pattern need be found; the limit keeps memory within a constant
# of the stored numbers.
_BLOCK_ENTRIES = 4

# Pairs for each number that a mask stores, up to which they are listed. A hub that every walk visits makes the support
# dense: the limit keeps memory, about 100 bytes a pair, within a constant of the stored numbers.
MOST_PAIRS = 64


class AttentionMask(Protocol):
    """A mask as attention sees it; :class:`~pyg_topomask.operators.MaskOperator` says what each part means."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def heads(self) -> int | None: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def has_blocks(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def bound(self) -> AttentionMask: ...
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
    def row_pairs(self, start: int, stop: int) -> tuple[Pattern, Tensor]: ...
    def blocks(self, layout: BlockLayout) -> list[Tensor]: ...
    def to_dense(self) -> Tensor: ...
    def __matmul__(self, x: Tensor) -> Tensor: ...


class TensorMask:
    """A plain tensor, ``[N, N]`` or ``[H, N, N]``, as a mask. Raises ValueError if it has another shape."""

    is_dense, has_blocks, num_pairs, pairs_by_row, error = True, False, None, None, 0.0

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
        """The tensor's absolute value; this mask itself where no entry is negative."""
        return self if non_negative(self.matrix) else TensorMask(absolute(self.matrix))

    def pairs(self) -> tuple[Pattern, Tensor]:
        """Refused: the support of a tensor is not looked for."""
        raise ValueError("path 'pairwise' needs a sparse support, but the mask is a tensor; use path 'dense'")

    def row_pairs(self, start: int, stop: int) -> tuple[Pattern, Tensor]:
        """Refused, as `pairs`."""
        return self.pairs()

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        """Refused: a tensor is used whole."""
        raise ValueError("path 'blocks' needs each graph's own block, but the mask is a tensor; use path 'dense'")

    def to_dense(self) -> Tensor:
        """The tensor."""
        return self.matrix

    def __matmul__(self, x: Tensor) -> Tensor:
        if self.heads is None:
            return self.matrix.to(x.dtype) @ x
        return (self.matrix.to(x.dtype) @ x.transpose(0, 1)).transpose(0, 1)


def read_mask(mask: AttentionMask | Tensor, q: Tensor) -> AttentionMask:
    """The mask of an attention with queries ``q`` ``[N, H, R]``.

    Raises:
        ValueError: If it is for other nodes or heads.
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
    """Absolute errors of a mask's entries by row, shape ``[N, H or 1]``; :obj:`None` where its products are exact."""
    error = mask.error
    if isinstance(error, Tensor):
        return error.reshape(-1, 1).expand(mask.num_nodes, 1) if error.dim() < 2 else error
    return torch.full((mask.num_nodes, 1), error, device=mask.device) if error else None


def prefers_blocks(mask: AttentionMask, batch: Tensor | None) -> bool:
    """Whether dense blocks of the graphs are small beside what the mask stores."""
    if not mask.has_blocks:
        return False
    return count_block_entries(mask.num_nodes if batch is None else batch) <= _BLOCK_ENTRIES * mask.num_multiply_adds
