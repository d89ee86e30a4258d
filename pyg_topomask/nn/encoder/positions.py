"""Learned vectors for the positions of nodes in graphs that are equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.init import normal_

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.ops.segment import size_groups


class NodePositions(Resettable):
    """A learned vector for each node's number in its graph: absolute positions, for images and other equal graphs.

    **Not equivariant**: node ``i`` of every graph gets vector ``i``, so all graphs must number their nodes alike.

    Reference: Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021, arXiv:2010.11929, Section 3.1.

    Args:
        channels: Width ``C``.
        num_positions: Number of nodes of every graph.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is not positive. When called, if a graph has another number of nodes.
    """

    def __init__(self, channels: int, num_positions: int) -> None:
        super().__init__()
        self.channels = check_integer("channels", channels, 1)
        self.num_positions = check_integer("num_positions", num_positions, 1)
        self.weight = Parameter(torch.empty(self.num_positions, self.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        normal_(self.weight, std=0.02)

    def forward(self, num_nodes: int, batch: Tensor | None = None) -> Tensor:
        """The vectors of ``num_nodes`` nodes in the graphs of ``batch``, ``[N, C]``; one graph if :obj:`None`."""
        sizes = [num_nodes]
        if torch.compiler.is_compiling():  # sizes of graphs cannot be read there
            sizes = [num_nodes % self.num_positions]
        elif batch is not None:
            sizes = size_groups(batch).num_nodes
        wrong = next((size for size in sizes if size not in (0, self.num_positions)), None)
        if wrong is not None:
            raise ValueError(
                f"the model has a position for each of {self.num_positions} nodes, but a graph has {wrong}; positions "
                "are for graphs of one size: give 'num_positions' the number of their nodes"
            )
        return self.weight.repeat(num_nodes // self.num_positions, 1)

    def extra_repr(self) -> str:
        return f"{self.channels}, num_positions={self.num_positions}"
