"""The mask of relative positions on a grid."""

from collections.abc import Sequence
from math import prod

from torch import Tensor

from pyg_topomask.checks import check_floating, check_grid_shape
from pyg_topomask.operators.equal_graphs import EqualGraphsOperator
from pyg_topomask.ops.attention.mask import DENSE_COST
from pyg_topomask.ops.memo import is_learned
from pyg_topomask.ops.numerics import at_least_float32, product_eps
from pyg_topomask.ops.products.fft import toeplitz_matrix, toeplitz_multiply_adds, toeplitz_product

# The matrix is formed if its multiply-adds are at most this many times those of the transforms. Measured on CPU: it
# takes half the time at 16 grids of 28 × 28, about the same at 32 × 32, and 1.3 times as long or more at 40 × 40.
_MATRIX_SPEED = 9

# Multiply-adds of matrices that take as long as an entry of the matrix: to form it, and with its gradient.
_ENTRY, _LEARNED_ENTRY = 10.0, 100.0

# Rounding error of an entry, in machine epsilons times the norm of the weight: at most 2.2 as measured.
_ROUNDING = 4.0


class ToeplitzOperator(EqualGraphsOperator):
    r"""Mask of relative positions on a grid, ``d``-level block-Toeplitz: :math:`M_{pq} = w_{p - q + n - 1}`.

    Nodes ``p`` and ``q`` of the grid ``(n_1, …, n_d)`` are in row-major order, and the formula applies along each axis.
    The paper's masks, which are functions of the distance along the axes, have :math:`w_k = f(\|k - n + 1\|_1)`.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.2, Definition 3.2 and Lemma 3.3. Cost of
    ``op @ x`` for ``x`` of shape ``[N, C]``, where ``n`` is the number of nodes of one grid: :math:`O(N C \log n)` by
    FFT, or :math:`O(N n C)` if the grid is so small that its matrix is faster.

    Args:
        weight: Weights :math:`w`, shape ``[2 n_1 - 1, …, 2 n_d - 1]``, or ``[H, 2 n_1 - 1, …]`` for one mask per head.
        grid_shape: ``(n_1, …, n_d)``.
        num_graphs: Number of equal grids in the batch, one after the other.

    Raises:
        ValueError: If the shapes of weight and grid do not match.
        TypeError: If the weight is not floating point.
    """

    def __init__(self, weight: Tensor, grid_shape: Sequence[int], num_graphs: int = 1) -> None:
        self.grid_shape = check_grid_shape(grid_shape)
        wanted = [2 * size - 1 for size in self.grid_shape]
        heads = weight.dim() - len(wanted)
        if heads not in (0, 1) or list(weight.shape[heads:]) != wanted:
            raise ValueError(
                f"'weight' must be {wanted}, 2 n - 1 along each axis of the grid {list(self.grid_shape)}, or have "
                f"heads before that (got {list(weight.shape)})"
            )
        check_floating("weight", weight)
        super().__init__(prod(self.grid_shape), num_graphs, weight.size(0) if heads else None)
        self.weight, self.numbers, self.dtype, self.device = weight, (weight,), weight.dtype, weight.device
        transform_work = toeplitz_multiply_adds(self.grid_shape)
        self._is_small = self.graph_size**2 <= _MATRIX_SPEED * transform_work
        self.product_cost = DENSE_COST if self._is_small else 1.0
        self._entry_work = _LEARNED_ENTRY if is_learned(weight) else _ENTRY
        self.num_multiply_adds = self.num_graphs * (self.graph_size**2 if self._is_small else transform_work)

    @property
    def T(self) -> "ToeplitzOperator":
        axes = list(range(-len(self.grid_shape), 0))
        return self._with(self.weight.flip(axes))

    def _with(self, weight: Tensor) -> "ToeplitzOperator":
        return ToeplitzOperator(weight, self.grid_shape, self.num_graphs)

    @property
    def error(self) -> float | Tensor:
        if self._is_small:
            return 0.0
        (weight,) = at_least_float32(self.weight.detach().flatten(0 if self.heads is None else 1))
        return (_ROUNDING * product_eps(self.dtype) * weight.norm(dim=-1)).expand(self.num_nodes, *weight.shape[:-1])

    def _weight(self) -> Tensor:
        return self.weight if self.heads is not None else self.weight[None]

    def _kernel(self) -> Tensor:
        return toeplitz_matrix(self._weight(), self.grid_shape)

    def _product(self, x: Tensor) -> Tensor:  # [H, G, n, C]
        heads, num_graphs, size, channels = x.shape
        if self._is_small:
            columns = x.transpose(1, 2).reshape(heads, size, num_graphs * channels)
            product = self._kernel().to(x.dtype) @ columns
            return product.view(heads, size, num_graphs, channels).transpose(1, 2)
        signal = x.transpose(2, 3).reshape(heads, num_graphs * channels, *self.grid_shape)
        product = toeplitz_product(self._weight().to(x.dtype), signal)
        return product.reshape(heads, num_graphs, channels, size).transpose(2, 3)
