"""Masks of relative positions on grids."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_grid_shape
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.structure import grid_operator
from pyg_topomask.operators import MaskOperator, ToeplitzOperator
from pyg_topomask.ops.numerics import at_least_float32

FUNCTIONS = ("offset", "distance")


class ToeplitzMask(Mask):
    r"""A learnable weight for each relative position of two nodes of a grid, :math:`M_{pq} = w(p - q)`.

    The weights may have any sign. They start at :math:`e^{-\|p - q\|_1}`. On images of digits, models with this
    start learned faster than models with positive weights only, and faster than models with a slower initial decay. The
    mask serves grids up to ``grid_shape``, also of several sizes in one batch: weights belong to offsets, and a small
    grid has few of them.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.2, Definition 3.2 and Lemma 3.3.
    Cost of a product: :math:`O(N \log N)`, by the fast Fourier transform.

    Args:
        grid_shape: ``(n_1, …, n_d)`` of the largest grid, such as ``[8, 8]`` for images of that size.
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        function: ``"offset"``: free weights, which can express directions; the default. ``"distance"``: weights that
            are a function of the distance along the axes, :math:`w(p - q) = f(\|p - q\|_1)`, the masks of the paper.

    Shapes:
        - the parameter ``weight``: ``[2 n_1 - 1, …, 2 n_d - 1]`` of offsets from :math:`1 - n` to :math:`n - 1`, or
          ``[1 + Σ (n_i - 1)]`` of distances; ``[H, …]`` with several heads

    Raises:
        TypeError: If a size or ``heads`` is not an integer.
        ValueError: If a size or ``heads`` is not positive, or ``function`` is unknown.
    """

    card = Card(
        formula="w(p − q) of the positions p, q on a grid",
        learns="a weight for each offset, or each distance",
        cost="N log N, or N n for small grids",
        when="images and sequences: the only mask here that knows directions on grids",
        reach="order",
        graphs="grids",
        time=1.1,
        examples=({"grid_shape": (5,)}, {"grid_shape": [5], "function": "distance"}),
    )
    config_keys = keys_of("heads")
    requires = ("grid_shape",)

    def __init__(self, grid_shape: Sequence[int], heads: int = 1, function: str = "offset") -> None:
        super().__init__(heads)
        check_choice("function", function, FUNCTIONS)
        self.grid_shape = check_grid_shape(grid_shape)
        self.function, distance = function, _distances(self.grid_shape, "cpu")
        by_weight = distance if function == "offset" else torch.arange(int(distance.max()) + 1, device="cpu")
        self.weight = self.learned((-by_weight).exp())

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a grid or a batch of grids.

        Raises:
            ValueError: If ``grid_shape`` is missing, is that of another graph, or exceeds the mask's.
        """
        (weight,) = at_least_float32(self.weight)
        if self.function == "distance":
            distance = _distances(self.grid_shape, weight.device)
            weight = weight.index_select(-1, distance.flatten()).unflatten(-1, distance.shape)
        return grid_operator(self, graph, lambda shape, count: ToeplitzOperator(self._cut(weight, shape), shape, count))

    def _cut(self, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The weights of the offsets that a grid of that shape has."""
        if len(shape) != len(self.grid_shape) or any(size > most for size, most in zip(shape, self.grid_shape)):
            raise ValueError(
                f"the graph is the grid {list(shape)}, but the mask has weights for grids up to "
                f"{list(self.grid_shape)}; give ToeplitzMask the largest 'grid_shape'"
            )
        for axis, (size, most) in enumerate(zip(shape, self.grid_shape), start=-len(shape)):
            weight = weight.narrow(axis, most - size, 2 * size - 1)
        return weight


def _distances(grid_shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Distance along the axes of each offset, int64, shape ``[2 n_1 - 1, …]``."""
    offsets = torch.meshgrid(*(torch.arange(1 - size, size, device=device) for size in grid_shape), indexing="ij")
    return torch.stack(offsets).abs().sum(0)
