"""Heat kernels of grids."""

from torch_geometric.data import Data

from pyg_topomask.nn.card import Card
from pyg_topomask.nn.mask.heat import DiffusionMask
from pyg_topomask.nn.mask.structure import grid_operator
from pyg_topomask.operators import GridHeatOperator, MaskOperator


class GridHeatMask(DiffusionMask):
    r"""Heat kernel :math:`M = \exp(-\lambda L)` of grid graphs, such as images or sequences, multiplied axis by axis.

    The time :math:`\lambda` is learned per head and stays in :math:`(0, \lambda_{\max})`. It serves grids of every
    size, also in one batch. The product is exact up to rounding, and cheaper than that of
    :class:`~pyg_topomask.nn.HeatMask`; see :class:`~pyg_topomask.operators.GridHeatOperator`.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4, Eq. 4, and Section 4.1.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        time: Initial time. With the default, 1, heat spreads by about 1.4 nodes along each axis.
        max_time: Upper end of the range. With the default, 64, heat spreads by about 11 nodes along each axis.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If a setting is out of range.
    """

    card = Card(
        formula="exp(−λL) of a grid",
        learns="time λ in (0, `max_time`)",
        cost="N Σ nᵢ or N log N",
        when="images and lattices, without a direction",
        reach="order",
        graphs="grids",
        time=1.1,
        examples=({"time": 2.0},),
    )
    requires = ("grid_shape",)

    def __init__(self, heads: int = 1, time: float = 1.0, max_time: float = 64.0) -> None:
        super().__init__(heads, time, max_time)

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a grid or a batch of grids.

        Raises:
            ValueError: If ``grid_shape`` is missing, or is that of another graph.
        """
        time = self.time
        return grid_operator(self, graph, lambda shape, count: GridHeatOperator(shape, time, count))
