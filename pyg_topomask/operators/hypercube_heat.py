"""The heat kernel of a hypercube."""

from torch import Tensor

from pyg_topomask.checks import check_integer
from pyg_topomask.operators.grid_heat import GridHeatOperator


class HypercubeHeatOperator(GridHeatOperator):
    r"""Heat kernel :math:`M = \exp(-\lambda L)` of a hypercube, whose neighbouring nodes differ in one bit.

    .. math:: M_{ij} = \left(\frac{1 + e^{-2 \lambda}}{2}\right)^{dim} \tanh(\lambda)^{\mathrm{Hamming}(i, j)}

    It is the grid whose axes have two nodes, and its entries are exact up to rounding.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.1, after Kondor and Lafferty, 2002.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N C \log N)`.

    Args:
        dim: Dimension; a hypercube has :math:`2^{dim}` nodes in binary order.
        time: Diffusion time :math:`\lambda \ge 0`, a number, or ``[H]`` for one mask per head.
        num_graphs: Number of hypercubes in the batch, one after the other.

    Raises:
        ValueError: If the dimension or a time is negative.
        TypeError: If a size is not an integer, or ``time`` is neither a number nor a floating-point tensor.
    """

    def __init__(self, dim: int, time: float | Tensor, num_graphs: int = 1) -> None:
        self.dim = check_integer("dim", dim, 0)
        super().__init__((2,) * self.dim or (1,), time, num_graphs)

    @property
    def error(self) -> float:
        return 0.0
