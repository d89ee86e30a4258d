"""The heat kernel of a hypercube."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.checks import check_integer
from pyg_topomask.operators.base import NonNegativeOperator, SymmetricOperator
from pyg_topomask.operators.equal_graphs import EqualGraphsOperator
from pyg_topomask.operators.parameters import check_time, parameter_dtype, per_head
from pyg_topomask.ops.products.kronecker import hypercube_heat, hypercube_kernel, hypercube_multiply_adds


class HypercubeHeatOperator(SymmetricOperator, NonNegativeOperator, EqualGraphsOperator):
    r"""Heat kernel :math:`M = \exp(-\lambda L)` of a hypercube, whose neighbouring nodes differ in one bit.

    .. math:: M_{ij} = \left(\frac{1 + e^{-2 \lambda}}{2}\right)^{dim} \tanh(\lambda)^{\mathrm{Hamming}(i, j)}

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.1, after Kondor and Lafferty, 2002.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N C \log N)`.

    Args:
        dim: Dimension; a hypercube has :math:`2^{dim}` nodes in binary order.
        time: Diffusion time :math:`\lambda \ge 0`, a number, or ``[H]`` for one mask per head.
        num_graphs: Number of hypercubes in the batch, one after the other.

    Raises:
        ValueError: If the dimension or a time is negative.
    """

    def __init__(self, dim: int, time: float | Tensor, num_graphs: int = 1) -> None:
        self.dim = check_integer("dim", dim, 0)
        self.time, heads = per_head("time", time)
        check_time(self.time)
        super().__init__(2**self.dim, num_graphs, heads)
        self.dtype, self.device = parameter_dtype(time), self.time.device
        self.num_multiply_adds = self.num_graphs * hypercube_multiply_adds(self.dim)

    def _kernel(self) -> Tensor:
        return hypercube_kernel(self.time, self.dim).to(self.dtype)

    def _product(self, x: Tensor) -> Tensor:
        return hypercube_heat(self.time, x, self.dim)
