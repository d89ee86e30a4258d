"""What every mask operator can do."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyg_topomask.ops.attention.inputs import at_least_float32
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.sparse import Pattern

if TYPE_CHECKING:
    from pyg_topomask.operators.algebra import ScaledOperator, SumOperator


class MaskOperator:
    r"""One ``N × N`` mask, or one per head, known by its product with a matrix.

    A subclass sets `num_nodes`, `heads`, `dtype` and `device` and defines `_matmul` and `T`. It is differentiable in
    ``x`` and in every floating-point argument, because plain torch operations or `torch.autograd.Function`\ s do the
    work. Row ``i``, column ``j`` is what node ``i`` takes from node ``j``.
    """

    num_nodes: int
    """``N``."""
    heads: int | None = None
    """``H`` where every head has its own mask, :obj:`None` where all share one."""
    is_dense: bool = False
    """Whether the matrix is stored as it is, so that `to_dense` costs nothing."""
    has_blocks: bool = False
    """Whether `blocks` can be formed at a cost in proportion to `work` and the blocks."""
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    @property
    def T(self) -> MaskOperator:
        """The transposed mask."""
        raise NotImplementedError

    @property
    def work(self) -> int:
        """Multiply-adds of ``op @ x`` for one column of one head: what choosing a path counts."""
        raise NotImplementedError

    @property
    def num_pairs(self) -> int | None:
        """Entries in the support, or an upper bound; :obj:`None` where the support is not known to be sparse."""
        return None

    def pairs(self) -> tuple[Pattern, Tensor]:
        """The support and the entries on it, ``[P]`` or ``[P, H]``; rows may be in `Pattern.order`.

        Raises:
            ValueError: If the support is not known to be sparse.
        """
        raise ValueError(f"{type(self).__name__} has no sparse support to list")

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        """Dense blocks of the transposed mask: for each group of ``layout``, ``[g, n, n]`` or ``[g, H, n, n]``.

        Row ``j``, column ``i`` of a block is what the graph's node ``i`` takes from its node ``j``: the order in which
        attention reads them.

        Raises:
            ValueError: If `has_blocks` is false, or the mask joins two graphs of ``layout``.
        """
        raise ValueError(f"{type(self).__name__} is not known by its graphs' blocks")

    def _matmul(self, x: Tensor) -> Tensor:
        """Product with ``x`` of shape ``[N, C]``, or ``[N, H, C]`` where there are heads."""
        raise NotImplementedError

    def __matmul__(self, x: Tensor) -> Tensor:
        """Product ``op @ x`` with ``x`` of shape ``[N, *]``, or ``[N, H, *]`` where there are heads; the same shape.

        Half precision is widened for the product, as under autocast.

        Raises:
            TypeError: If ``x`` is not a floating-point tensor.
            ValueError: If ``x`` has another number of nodes or heads.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"a mask multiplies a floating-point tensor (got {getattr(x, 'dtype', type(x).__name__)})")
        lead = (self.num_nodes,) if self.heads is None else (self.num_nodes, self.heads)
        if x.dim() < len(lead) or tuple(x.shape[: len(lead)]) != lead:
            wanted = "[N, *]" if self.heads is None else "[N, H, *]"
            raise ValueError(
                f"a mask of {self.num_nodes} nodes"
                + (f" and {self.heads} heads" if self.heads is not None else "")
                + f" multiplies {wanted} (got {list(x.shape)}); is 'x' of the same batch?"
            )
        (wide,) = at_least_float32(x)
        with torch.autocast(x.device.type, enabled=False):
            product = self._matmul(wide.reshape(*lead, prod(x.shape[len(lead) :])))
        return product.reshape(x.shape).to(x.dtype)

    def to_dense(self) -> Tensor:
        """The matrix itself, ``[N, N]`` or ``[H, N, N]``: ``O(N²)`` memory, for tests and pictures."""
        eye = torch.eye(self.num_nodes, dtype=self.dtype, device=self.device)
        if self.heads is None:
            return self @ eye
        return (self @ eye[:, None].expand(-1, self.heads, -1)).transpose(0, 1)

    def __add__(self, other: MaskOperator) -> SumOperator:
        from pyg_topomask.operators.algebra import SumOperator

        return SumOperator(self, other) if isinstance(other, MaskOperator) else NotImplemented

    def __mul__(self, scale: float | Tensor) -> ScaledOperator:
        from pyg_topomask.operators.algebra import ScaledOperator

        return ScaledOperator(self, scale) if isinstance(scale, (int, float, Tensor)) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> ScaledOperator:
        return -1.0 * self

    def __sub__(self, other: MaskOperator) -> SumOperator:
        return self + -other if isinstance(other, MaskOperator) else NotImplemented

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads={self.heads}"
        return f"{type(self).__name__}(num_nodes={self.num_nodes}{heads})"


def common_heads(heads: list[int | None]) -> int | None:
    """Number of heads that masks share, those without heads serving every head. Raises ValueError if they differ."""
    given = {count for count in heads if count is not None}
    if len(given) > 1:
        raise ValueError(f"masks of different numbers of heads do not combine (got {sorted(given)})")
    return given.pop() if given else None
