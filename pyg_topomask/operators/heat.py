"""The heat kernel of a graph."""

from math import log

import numpy as np
import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice
from pyg_topomask.operators.base import NonNegativeOperator
from pyg_topomask.operators.parameters import check_time, parameter_dtype, per_head
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.memo import is_learned
from pyg_topomask.ops.products.chebyshev import HeatSeries, heat_series
from pyg_topomask.ops.products.laplacian import LAPLACIANS, heat_generator
from pyg_topomask.ops.products.polynomial import Basis, polynomial_attention, polynomial_blocks, polynomial_product

# Rounding error of a series in float32, in machine epsilons times (half the width of its exponent's range plus one).
# Measured: at most 1, on stars, whose centre has the largest rounding errors.
_ROUNDING = 2.0

# Tolerance below which rounding in float64 dominates the error.
_LEAST_TOL = 1e-13


def check_tolerance(tol: float) -> None:
    """Refuse a relative error that float64 does not reach, and 1 and more. Raises ValueError."""
    if not _LEAST_TOL <= tol < 1:
        raise ValueError(f"'tol' must be in [{_LEAST_TOL:g}, 1): a relative error (got {tol})")


class HeatOperator(NonNegativeOperator):
    r"""Heat kernel :math:`M = \exp(-\lambda T)` of an undirected graph, whose product does not form the matrix.

    ``T`` is the Laplacian :math:`D - A` (``"combinatorial"``), :math:`D^{-1/2} (D - A) D^{-1/2}` (``"normalized"``),
    :math:`(D - A) D^{-1}` (``"random_walk"``, whose columns sum to one: :math:`M_{ij}` goes from ``j`` to ``i``), or
    :math:`-A` (``"adjacency"``). A node of degree 0 is connected only to itself. The product is a Chebyshev series
    with an error of at most :math:`\mathrm{tol} \cdot \|M\|_2 \cdot \|x\|_2`; float32 inputs are computed in float64 if
    rounding would exceed it. Each connected component has its own interval and degree, which do not depend on the rest
    of the batch.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4, Eq. 4 and Theorem 4.1.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O((E + N)\, K\, C)`; the degree ``K`` grows like the square
    root of the time times the largest degree, or like the time where that is short.

    Args:
        edge_index: Edges, both directions of each, shape ``[2, E]``.
        num_nodes: ``N``.
        time: Diffusion time :math:`\lambda \ge 0`, a number, or ``[H]`` for one mask per head.
        edge_weight: Weights ≥ 0, equal in both directions, shape ``[E]``; one per edge if :obj:`None`.
        laplacian: ``"combinatorial"``, ``"normalized"``, ``"random_walk"`` or ``"adjacency"``.
        tol: Relative error.
        longest: The longest of the times, or an upper bound, if the host knows it. If :obj:`None`, it is read from
            ``time``, for which the host waits on CUDA.

    Raises:
        ValueError: If the graph is not undirected, a weight or a time is negative, ``tol`` is not in [1e-13, 1),
            ``laplacian`` is unknown, or the entries under ``"adjacency"`` exceed the range of the dtype.
        TypeError: If edges are not integers, weights are not floating point, or ``time`` is neither a number nor a
            floating-point tensor.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        time: float | Tensor,
        edge_weight: Tensor | None = None,
        laplacian: str = "combinatorial",
        tol: float = 1e-6,
        longest: float | None = None,
    ) -> None:
        check_choice("laplacian", laplacian, LAPLACIANS)
        check_tolerance(tol)
        self.time, self.heads = per_head("time", time, edge_index.device)
        check_time(self.time)
        self.num_nodes, self.laplacian, self.tol = num_nodes, laplacian, tol
        self.dtype, self.device = parameter_dtype(time, edge_weight), edge_index.device
        self._generator = heat_generator(edge_index, num_nodes, edge_weight, laplacian)
        self._root = self._generator.root  # of this mask; its reciprocal is that of the transposed one
        self._longest = float(self.time.detach().max()) if longest is None else longest
        has_dtype = isinstance(time, Tensor) or edge_weight is not None
        dtype = self.dtype if has_dtype else torch.float64
        series, self._is_wide, self._low = plans.once("heat.series", lambda: self._series(dtype))
        self._coeffs = series.coeffs(self.time)  # [K + 1, U, H or 1]
        self.product_cost = 1.0 if is_learned(self._generator.value) else 0.1  # `contract` serves
        self.num_multiply_adds = self._coeffs.size(0) * (self._generator.pattern.nnz + 2 * num_nodes)

    def _series(self, dtype: torch.dtype) -> tuple[HeatSeries, bool, Tensor]:
        """The series for all times up to the longest one, whether it needs float64, and lower ends of the intervals."""
        self._check_range(dtype)
        low, high, reached, condition = self._generator.bounds
        margin = np.exp(-self._longest * (reached - low))  # of the end beyond the spectrum
        series = heat_series(low, high, self.tol * margin / condition, self._longest, self.device)
        width = self._longest * (high - low).max(initial=0) / 2
        is_wide = bool(2 * _ROUNDING * torch.finfo(torch.float32).eps * (1 + width) > self.tol)
        return series, is_wide, torch.from_numpy(low).to(self.device, non_blocking=True)

    @property
    def T(self) -> "HeatOperator":
        if self._root is None:
            return self
        operator = HeatOperator.__new__(HeatOperator)
        operator.__dict__.update(self.__dict__, _root=1 / self._root)
        return operator

    @property
    def error(self) -> float | Tensor:
        if self.laplacian != "adjacency":
            return self.tol
        largest = torch.exp(-self.time.detach().double() * self._low[:, None])  # [U, H or 1]
        error = self.tol * largest.index_select(0, self._generator.interval)
        return error[:, 0] if self.heads is None else error

    @property
    def dense_blocks(self) -> DenseBlocks:
        return self._blocks_by_product(self._generator.pattern, self._shared_blocks, 0.25)

    def _shared_blocks(self, layout: BlockLayout) -> list[Tensor] | None:
        if self._root is not None:
            return None
        dtype = torch.float64 if self._is_wide else self.dtype
        return polynomial_blocks(*self._polynomial, layout, dtype)

    @property
    def _polynomial(self) -> tuple[Basis, Tensor, Tensor | None]:
        """Basis, coefficients, and group of each row."""
        generator = self._generator
        group = generator.interval if self._coeffs.size(1) > 1 else None
        return Basis(generator.pattern, generator.value, chebyshev=True), self._coeffs, group

    def _check_range(self, dtype: torch.dtype) -> None:
        if plans.reading() or self._generator.bounds is None:  # it was checked when the plan was made
            return
        exponent = -self._longest * float(self._generator.bounds[0].min(initial=0))
        if exponent > log(torch.finfo(dtype).max):
            raise ValueError(
                f"exp('time' times the largest eigenvalue) = exp({exponent:.4g}) is beyond the range of {dtype}; use "
                "a smaller time, normalise the edge weights, or use laplacian='combinatorial'"
            )

    def contract(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        self._check_range(v.dtype)
        given = [x.to(torch.float64 if self._is_wide else x.dtype) for x in (q, k, v)]
        if self._root is not None:
            left = self._root.to(given[0].dtype)[:, None, None]
            given[:2] = given[0] * left, given[1] / left
        sums = polynomial_attention(*self._polynomial, *given)
        return None if sums is None else sums.to(v.dtype)

    def _matmul(self, x: Tensor) -> Tensor:
        self._check_range(x.dtype)
        dtype = torch.float64 if self._is_wide else x.dtype
        rows = x.reshape(self.num_nodes, -1, x.size(-1)).to(dtype)
        if self._root is None:
            return polynomial_product(*self._polynomial, rows).to(x.dtype).view_as(x)
        left = self._root.to(dtype)[:, None, None]
        return (polynomial_product(*self._polynomial, rows / left) * left).to(x.dtype).view_as(x)
