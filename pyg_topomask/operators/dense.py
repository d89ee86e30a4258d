"""A mask that is given as a dense matrix."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.checks import check_floating
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.ops.numerics import absolute, non_negative


class DenseOperator(MaskOperator):
    """Mask stored as a matrix: the simplest operator, quadratic in memory.

    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N^2 C)`.

    Args:
        matrix: The mask, shape ``[N, N]``, or ``[H, N, N]`` for one mask per head.

    Raises:
        ValueError: If the matrix is not square.
        TypeError: If it is not floating point.
    """

    is_dense = True

    def __init__(self, matrix: Tensor) -> None:
        if matrix.dim() not in (2, 3) or matrix.size(-1) != matrix.size(-2):
            raise ValueError(f"'matrix' must be [N, N] or [H, N, N] (got {list(matrix.shape)})")
        check_floating("matrix", matrix)
        self.matrix = matrix
        self.num_nodes, self.heads = matrix.size(-1), matrix.size(0) if matrix.dim() == 3 else None
        self.dtype, self.device = matrix.dtype, matrix.device

    @property
    def T(self) -> DenseOperator:
        return DenseOperator(self.matrix.transpose(-1, -2))

    @property
    def bound(self) -> DenseOperator:
        return self if non_negative(self.matrix) else DenseOperator(absolute(self.matrix))

    def to_dense(self) -> Tensor:
        return self.matrix

    def _matmul(self, x: Tensor) -> Tensor:
        if self.heads is None:
            return self.matrix.to(x.dtype) @ x
        return (self.matrix.to(x.dtype) @ x.transpose(0, 1)).transpose(0, 1)
