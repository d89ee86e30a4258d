"""The mask of a sequence in which each node reads only earlier nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.operators.base import NonNegativeOperator
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout, cut_blocks
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.forest import Forest, build_forest
from pyg_topomask.ops.products.trees import sweep_down, sweep_up
from pyg_topomask.ops.segment import segments


class CausalOperator(NonNegativeOperator):
    r"""Causal mask, :math:`M_{ij} = 1` if ``j ≤ i`` and both are in the same sequence, in the order of the nodes.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3. Cost of ``op @ x`` for ``x`` of shape
    ``[N, C]``: :math:`O(N C)`, a running sum within each sequence. No sum over another sequence is subtracted, so other
    sequences cannot change the result.

    Args:
        batch: Sequence of each node, sorted, shape ``[N]``.
        reverse: Read the sequence from its end, ``j ≥ i``; this is the transposed mask.

    Raises:
        ValueError: If ``batch`` is not sorted.
    """

    def __init__(self, batch: Tensor, reverse: bool = False) -> None:
        self.batch, self.reverse, self._chains = batch, reverse, _chains(batch)
        self.num_nodes, self.device, self.dtype = batch.numel(), batch.device, torch.get_default_dtype()
        self.num_multiply_adds = self.num_nodes

    @property
    def T(self) -> CausalOperator:
        return CausalOperator(self.batch, not self.reverse)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, shared=True)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        triangle, one = torch.tril if self.reverse else torch.triu, torch.ones((), dtype=self.dtype, device=self.device)
        return cut_blocks(layout.share(lambda n: triangle(one.expand(n, n))), self.batch, layout)

    def _matmul(self, x: Tensor) -> Tensor:
        chains, sweep = self._chains, sweep_up if self.reverse else sweep_down
        return sweep(chains, x.index_select(0, chains.order)[:, None])[:, 0].index_select(0, chains.position)


@once_per_batch
def _chains(batch: Tensor) -> Forest:
    """Each sequence as a path whose root is its first node."""
    segments(batch)  # checks it
    parent = torch.arange(batch.numel(), device=batch.device) - 1
    first = torch.ones_like(batch, dtype=torch.bool)
    first[1:] = batch.diff() != 0
    return build_forest(torch.where(first, -1, parent))
