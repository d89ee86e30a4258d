"""Masks that decay along the edges of a forest."""

from math import log

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.structure import TREE, read_tree
from pyg_topomask.operators import ForestExpOperator
from pyg_topomask.ops.numerics import at_least_float32, bounded_exp


class ForestMask(Mask):
    r"""Exponential of the path length in a forest, :math:`M_{ij} = e^{a\,\mathrm{dist}(i, j) + b}`; 0 between trees.

    The rate ``a`` is learned per head as :math:`a = \pm e^\theta`. It keeps the sign of its initial value. On graphs
    with cycles the forest is the spanning forest that ``AddTreeOrder`` adds.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.3, Lemma 3.5. Cost of a product: linear in the
    nodes; see :class:`~pyg_topomask.operators.ForestExpOperator`.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        a: Initial rate per unit of length, not 0. The default, -0.5, makes weights fall to a tenth within five edges.
            With a positive rate, weights grow with the distance; on deep trees they may exceed the range of numbers.
        b: Logarithm of the scale. It is not learned, since a factor of the mask cancels in attention; it matters in
            sums of masks.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If ``heads`` is not positive, or ``a`` is 0 or not finite.
    """

    card = Card(
        formula="exp(a · dist(i, j) + b) in a spanning forest",
        learns="rate a, which keeps its sign",
        cost="about 6 N",
        when="trees with lengths of edges; one number per head",
        reach="far",
    )
    config_keys = keys_of("heads")
    requires = TREE

    def __init__(self, heads: int = 1, a: float = -0.5, b: float = 0.0) -> None:
        super().__init__(heads)
        if not 0 < abs(a) < float("inf"):
            raise ValueError(f"'a' must be a finite number other than 0 (got {a})")
        self._grows, self.b = a > 0, b
        self.log_rate = self.learned(torch.tensor(log(abs(a)), dtype=torch.float64, device="cpu"))

    @property
    def a(self) -> Tensor:
        """Rate, a scalar or ``[H]``."""
        (rate,) = at_least_float32(self.log_rate)
        return bounded_exp(rate) if self._grows else -bounded_exp(rate)

    def forward(self, graph: Data) -> ForestExpOperator:
        """The mask of a graph or batch with a spanning forest.

        Raises:
            ValueError: If the forest is missing, or is that of another graph.
        """
        return ForestExpOperator(*read_tree(self, graph), self.a, self.b)
