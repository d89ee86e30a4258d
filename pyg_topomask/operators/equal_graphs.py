"""Masks for batches in which all graphs are equal, such as images, lattices and hypercubes."""

from abc import abstractmethod

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_integer
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout


class EqualGraphsOperator(MaskOperator):
    """One mask that is applied to every graph of a batch of equal graphs in parallel.

    Args:
        graph_size: Number of nodes of each graph.
        num_graphs: Number of graphs in the batch.
        heads: ``H`` if every head has its own mask.
    """

    def __init__(self, graph_size: int, num_graphs: int, heads: int | None) -> None:
        self.num_graphs = check_integer("num_graphs", num_graphs, 0)
        self.graph_size, self.heads, self.num_nodes = graph_size, heads, graph_size * self.num_graphs

    product_cost, _entry_work = 0.3, 0.0

    @abstractmethod
    def _kernel(self) -> Tensor:
        """The mask of one graph, shape ``[H or 1, n, n]``."""

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """Product of every graph's mask with ``x`` of shape ``[H or 1, G, n, C]``; the result has the same shape."""

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, lambda sizes: self._entry_work * self.graph_size**2, shared=True)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        kernel = (self._kernel() if self.heads is not None else self._kernel()[0]).mT.contiguous()
        for size in [] if plans.reading() else layout.groups.num_nodes:
            if size % self.graph_size:
                raise ValueError(
                    f"the mask is for graphs of {self.graph_size} nodes, but a graph of 'batch' has {size}; "
                    "is 'batch' the batch vector of the mask's graphs?"
                )

        def block(size: int) -> Tensor:
            copies = torch.eye(size // self.graph_size, dtype=kernel.dtype, device=kernel.device)
            return kernel if copies.numel() == 1 else torch.kron(copies, kernel)

        return layout.share(block)

    def _matmul(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(self.num_graphs, self.graph_size, -1, shape[-1]).permute(2, 0, 1, 3)
        return self._product(x).permute(1, 2, 0, 3).reshape(shape)
