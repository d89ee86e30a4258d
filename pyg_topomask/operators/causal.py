"""The mask of a sequence in which each node reads only earlier nodes."""

from itertools import pairwise

import torch
from torch import Tensor

from pyg_topomask.operators.base import NonNegativeOperator
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout, cut_blocks
from pyg_topomask.ops.segment import segments, size_groups

_NODES = 1024  # of a running sum


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
        TypeError: If it does not hold integers.
    """

    def __init__(self, batch: Tensor, reverse: bool = False) -> None:
        segments(batch)  # checks it
        self.batch, self.reverse = batch, reverse
        self.num_nodes, self.device, self.dtype = batch.numel(), batch.device, torch.get_default_dtype()
        self.num_multiply_adds = self.num_nodes

    @property
    def T(self) -> "CausalOperator":
        return CausalOperator(self.batch, not self.reverse)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, shared=True)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        triangle, one = torch.tril if self.reverse else torch.triu, torch.ones((), dtype=self.dtype, device=self.device)
        return cut_blocks(layout.share(lambda n: triangle(one.expand(n, n))), self.batch, layout)

    def _matmul(self, x: Tensor) -> Tensor:
        groups = size_groups(self.batch)
        parts = groups.split(x)
        if self.reverse:
            return groups.join([_running_sums(part.flip(1)).flip(1) for part in parts])
        return groups.join([_running_sums(part) for part in parts])


def _running_sums(x: Tensor) -> Tensor:
    """Sums over the nodes up to each one, ``[g, n, *]``, of some nodes at a time, which stay in the cache."""
    parts = [part.cumsum(1) for part in x.split(_NODES, 1)]
    for before, part in pairwise(parts):
        part += before[:, -1:]
    return torch.cat(parts, dim=1)
