"""The mask of plain attention, under which every node reads all nodes of its own graph."""

import torch
from torch import Tensor

from pyg_topomask.operators.base import NonNegativeOperator, SymmetricOperator
from pyg_topomask.ops.attention.mask import DenseBlocks, Part
from pyg_topomask.ops.blocks import BlockLayout, cut_blocks
from pyg_topomask.ops.segment import segment_sum, segments


class OnesOperator(SymmetricOperator, NonNegativeOperator):
    r"""Mask of ones within each graph, :math:`M_{ij} = 1` if ``i`` and ``j`` are in the same graph.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3 (packing).
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N C)`.

    Args:
        batch: Graph of each node, sorted, shape ``[N]``.

    Raises:
        ValueError: If ``batch`` is not sorted.
        TypeError: If it does not hold integers.
    """

    def __init__(self, batch: Tensor) -> None:
        segments(batch)  # checks it
        self.batch = batch
        self.num_nodes, self.device, self.dtype = batch.numel(), batch.device, torch.get_default_dtype()
        self.num_multiply_adds = self.num_nodes

    @property
    def parts(self) -> list[Part]:
        return [Part(self, batch=self.batch)]

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, shared=True)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        one = torch.ones((), dtype=self.dtype, device=self.device)
        return cut_blocks(layout.share(lambda n: one.expand(n, n)), self.batch, layout)

    def _matmul(self, x: Tensor) -> Tensor:
        return segment_sum(x, self.batch).index_select(0, self.batch)
