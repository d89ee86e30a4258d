"""A mask that is given as a dense matrix."""

from torch import Tensor

from pyg_topomask.checks import check_floating
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.ops.attention.mask import DENSE_COST, TensorMask


class DenseOperator(TensorMask, MaskOperator):
    """Mask stored as a matrix: the simplest operator, quadratic in memory.

    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N^2 C)`.

    Args:
        matrix: The mask, shape ``[N, N]``, or ``[H, N, N]`` for one mask per head.

    Raises:
        ValueError: If the matrix is not square.
        TypeError: If it is not floating point.
    """

    product = MaskOperator.product  # checks its input, and takes any trailing shape
    is_dense, product_cost = True, DENSE_COST

    def __init__(self, matrix: Tensor) -> None:
        check_floating("matrix", matrix)
        TensorMask.__init__(self, matrix)

    @property
    def T(self) -> "DenseOperator":
        return DenseOperator(self.matrix.transpose(-1, -2))
