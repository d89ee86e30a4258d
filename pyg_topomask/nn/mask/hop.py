"""Masks that are a free function of the shortest-path distance."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer, readable, warn_once
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import check_table, count_nodes
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators import HopOperator
from pyg_topomask.ops.numerics import at_least_float32, bounded_exp


class HopMask(Mask):
    r"""A learnable function of the distance in the graph, :math:`M_{ij} = f(d(i, j))`, and 0 beyond ``max_hops``.

    ``f`` is free at each distance, so that a head can be a band, such as all nodes at 3 and 4 hops; a power series or a
    heat kernel cannot. It starts as :math:`f(k) = 1 / (1 + k)`. With the softmax kernel, :math:`\log f` is the distance
    bias of Graphormer (Ying et al., NeurIPS 2021, arXiv:2106.05234, Section 3.1.2), made sparse. Cost of a product:
    :math:`O(P)` for P pairs, up to :math:`N^2`, which :class:`~pyg_topomask.transforms.AddHops` lists.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        max_hops: Largest distance at which nodes see each other. 8 by default. On the molecules of Peptides, 8 hops
            are a third of the diameter, and a node has 29 pairs.
        positive: Whether ``f`` is positive, :math:`f = e^\theta`. If false, ``f`` has any sign, and attention
            normalises by its absolute values. θ counts as at most 40, so that results stay finite.

    Shapes:
        - the parameter ``values``, θ (or ``f``) at 0, 1, … hops: ``[max_hops + 1]``, or ``[H, max_hops + 1]``

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is out of range.
    """

    card = Card(
        formula="f(hops between i and j), 0 beyond `max_hops`",
        learns="f at 0 … `max_hops`",
        cost="pairs of nodes within `max_hops`, up to N²",
        when="molecules, and wherever a distance has a meaning of its own: a head can be a band of distances",
        reach="hops",
        most=2.0,
        examples=({"max_hops": 4}, {"max_hops": 2, "positive": False}),
    )
    config_keys = keys_of("heads")
    requires = ("hop_index", "hop_length", "hop_size")

    def __init__(self, heads: int = 1, max_hops: int = 8, positive: bool = True) -> None:
        super().__init__(heads)
        self.positive, self.max_hops = positive, check_integer("max_hops", max_hops, 0)
        self.transform_settings = {"max_hops": self.max_hops}
        start = 1 / torch.arange(1, self.max_hops + 2, device="cpu")
        self.values = self.learned(start.log() if positive else start)

    def forward(self, graph: Data) -> HopOperator:
        """The mask of a graph or batch with pairs within ``max_hops``.

        Raises:
            ValueError: If the pairs are missing, of another graph, or further apart than ``max_hops``.

        Warns:
            UserWarning: Once, if ``AddHops`` has listed pairs of fewer hops.
        """
        index, length, size = self.read(graph)
        check_table(self, graph, size, "pairs", index, length)
        self._warn_of_short(index, length)
        (values,) = at_least_float32(self.values)
        return HopOperator(index, length, bounded_exp(values) if self.positive else values, count_nodes(graph))

    def _warn_of_short(self, index: Tensor, length: Tensor) -> None:
        """Warn if a node at the largest distance from another one has a neighbour that is not listed with it."""
        if not readable(length) or length.numel() == 0 or (hops := int(length.max())) >= self.max_hops:
            return

        def row(node: Tensor) -> tuple[Tensor, Tensor]:
            start, end = torch.searchsorted(index[0], torch.stack([node, node + 1])).tolist()
            return index[1, start:end], length[start:end]

        seen, far = row(index[0][length[:10_000].argmax()])  # few rows, because each forward is checked
        near = [reached[far == 1] for reached, far in map(row, seen[far == hops][:8])]
        if near and not torch.isin(torch.cat(near), seen).all():
            text = f"HopMask has 'max_hops' = {self.max_hops}, but AddHops has listed pairs of at most {hops} hops"
            warn_once("HopMask: short pairs", f"{text}, so the others weigh zero: give both the same 'max_hops'")
