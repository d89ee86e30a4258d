"""The mask that hides padding nodes of a batch."""

import torch
from torch import Tensor

from pyg_topomask.operators.base import NonNegativeOperator
from pyg_topomask.operators.ones import OnesOperator
from pyg_topomask.operators.scaled import DiagonalScaledOperator


class PaddingOperator(NonNegativeOperator, DiagonalScaledOperator):
    r"""Mask of real nodes, :math:`M_{ij} = 1` if ``j`` is real and in the graph of ``i``: no node reads a padding node.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N C)`.

    Args:
        node_mask: Whether each node is real, boolean, shape ``[N]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Raises:
        ValueError: If shapes disagree or ``batch`` is not sorted.
        TypeError: If ``node_mask`` is not boolean.
    """

    def __init__(self, node_mask: Tensor, batch: Tensor | None = None) -> None:
        if node_mask.dtype != torch.bool:
            raise TypeError(f"'node_mask' must be boolean (got {node_mask.dtype}); compare with 0 first")
        if node_mask.dim() != 1 or (batch is not None and batch.shape != node_mask.shape):
            raise ValueError(
                f"'node_mask' and 'batch' must both be [N] (got {list(node_mask.shape)}"
                + (")" if batch is None else f" and {list(batch.shape)})")
            )
        ones = OnesOperator(torch.zeros_like(node_mask, dtype=torch.int64) if batch is None else batch)
        real = node_mask.to(ones.dtype)
        super().__init__(ones, torch.ones_like(real), real)
        self.node_mask = node_mask

    def _matmul(self, x: Tensor) -> Tensor:
        return self.operator.product(torch.where(self.node_mask[:, None], x, 0))  # also if padding nodes hold NaN
