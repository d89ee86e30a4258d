"""Masks that are a free function of the hop distance in a forest."""

import torch
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.structure import TREE, read_tree
from pyg_topomask.operators import TreeDistanceOperator
from pyg_topomask.operators.tree_distance import METHODS
from pyg_topomask.ops.numerics import at_least_float32


class TreeMask(Mask):
    r"""A learnable function of the hop distance in a forest, :math:`M_{ij} = f(\mathrm{dist}(i, j))`; 0 between trees.

    ``f`` is free up to ``max_hops``, of any sign, and 0 beyond. It starts as :math:`f(k) = 1 / (1 + k)`, so that
    distant nodes count from the start. On graphs with cycles the forest is the spanning forest that ``AddTreeOrder``
    adds.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 6, Lemmas 6.1 and 6.2. Cost of a product: see
    :class:`~pyg_topomask.operators.TreeDistanceOperator`.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        max_hops: Largest distance at which nodes see each other. 16 by default; the cost of a product grows with it up
            to the diameter.
        method: ``"auto"``, ``"histogram"`` or ``"centroid"``, which give the same numbers. By default the one with
            the lower estimated time.

    Shapes:
        - the parameter ``values``, ``f`` at 0, 1, … hops: ``[max_hops + 1]``, or ``[H, max_hops + 1]``

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is out of range, or the method is unknown.
    """

    card = Card(
        formula="f(hops between i and j) in a spanning forest, 0 beyond `max_hops`",
        learns="f at 0 … `max_hops`",
        cost="N min(`max_hops`, diameter), or N log² N",
        when="trees and molecules, long range: exact distances",
        reach="hops",
        time=1.1,
        examples=({"max_hops": 8},),
    )
    config_keys = keys_of("heads")
    requires = TREE

    def __init__(self, heads: int = 1, max_hops: int = 16, method: str = "auto") -> None:
        super().__init__(heads)
        check_choice("method", method, METHODS)
        self.max_hops, self.method = check_integer("max_hops", max_hops, 0), method
        self.values = self.learned(1 / torch.arange(1, self.max_hops + 2, device="cpu"))

    def forward(self, graph: Data) -> TreeDistanceOperator:
        """The mask of a graph or batch with a spanning forest.

        Raises:
            ValueError: If the forest is missing, or is that of another graph.
        """
        (values,) = at_least_float32(self.values)
        return TreeDistanceOperator(read_tree(self, graph)[0], values, self.method)
