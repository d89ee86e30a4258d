"""The heat kernel of a grid."""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from pyg_topomask.checks import check_grid_shape
from pyg_topomask.operators.base import NonNegativeOperator, SymmetricOperator
from pyg_topomask.operators.equal_graphs import EqualGraphsOperator
from pyg_topomask.operators.parameters import check_time, parameter_dtype, per_head
from pyg_topomask.ops.numerics import product_eps
from pyg_topomask.ops.products.kronecker import grid_heat, grid_kernel, grid_multiply_adds

# Rounding error of an entry in machine epsilons; no entry exceeds 1.
_ROUNDING = 8.0


class GridHeatOperator(SymmetricOperator, NonNegativeOperator, EqualGraphsOperator):
    r"""Heat kernel :math:`M = \exp(-\lambda L)` of a grid, the Kronecker product of the heat kernels of its paths.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4, Eq. 4, and Section 4.1. The closed form that
    the paper gives for grids is valid for hypercubes (:class:`HypercubeHeatOperator`). Cost of ``op @ x`` for ``x`` of
    shape ``[N, C]``: :math:`O(N C \sum_i n_i)` for axes of up to 256 nodes. A longer axis takes Fourier transforms,
    :math:`O(N C \log n_i)`.

    Args:
        grid_shape: ``(n_1, …, n_d)``, nodes in row-major order.
        time: Diffusion time :math:`\lambda \ge 0`, a number, or ``[H]`` for one mask per head. All edges have weight
            one.
        num_graphs: Number of equal grids in the batch, one after the other.

    Raises:
        ValueError: If an axis has no nodes, or a time is negative.
        TypeError: If a size is not an integer, or ``time`` is neither a number nor a floating-point tensor.
    """

    def __init__(self, grid_shape: Sequence[int], time: float | Tensor, num_graphs: int = 1) -> None:
        self.grid_shape = check_grid_shape(grid_shape)
        self.time, heads = per_head("time", time)
        check_time(self.time)
        super().__init__(prod(self.grid_shape), num_graphs, heads)
        self.dtype, self.device = parameter_dtype(time), self.time.device
        self.num_multiply_adds = self.num_graphs * grid_multiply_adds(self.grid_shape)

    @property
    def error(self) -> float:
        return _ROUNDING * product_eps(self.dtype)

    def _kernel(self) -> Tensor:
        return grid_kernel(self.time, self.grid_shape).to(self.dtype)

    def _product(self, x: Tensor) -> Tensor:
        return grid_heat(self.time, x, self.grid_shape)
