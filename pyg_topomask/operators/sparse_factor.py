"""Masks that are a product of two sparse matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pyg_topomask.operators.base import MaskOperator, common_heads
from pyg_topomask.ops.attention.mask import MOST_PAIRS
from pyg_topomask.ops.blocks import BlockLayout, product_blocks
from pyg_topomask.ops.sparse import Pattern, spmm
from pyg_topomask.ops.walks.product import join, sparse_product
from pyg_topomask.typing import SparseEntries


class Factor:
    """One sparse factor: positions sorted by row, and entries, shared or per head."""

    def __init__(self, pattern: Pattern, value: Tensor) -> None:
        self.pattern, self.value = pattern, value

    @property
    def heads(self) -> int | None:
        """``H`` where every head has its own entries."""
        return self.value.size(1) if self.value.dim() == 2 else None

    @property
    def T(self) -> Factor:
        """The transposed factor."""
        pattern, order = self.pattern.transposed
        return Factor(pattern, self.value.index_select(0, order))

    def matmul(self, x: Tensor) -> Tensor:
        """Product with ``[N, C]``, or with ``[N, H, C]`` head by head."""
        value = self.value.to(x.dtype)
        if x.dim() == 2:
            return spmm(self.pattern, value, x)
        if value.dim() == 1:
            return spmm(self.pattern, value, x.flatten(1)).view(self.pattern.num_rows, *x.shape[1:])
        columns = [spmm(self.pattern, value[:, h].contiguous(), x[:, h].contiguous()) for h in range(x.size(1))]
        return torch.stack(columns, dim=1)


class SparseFactorOperator(MaskOperator):
    r"""Product of two sparse factors, :math:`M = \Phi_1 \Phi_2^\top`.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eq. 10 (graph random features); Choromanski et al., ICML 2022,
    arXiv:2107.07999, Section 4.2 (RWGNK).
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(\mathrm{nnz}\, C)`, two sparse products.

    Args:
        left: Entries ``(index [2, nnz], value [nnz] or [nnz, H])`` of :math:`\Phi_1`, ``index`` being (row, column of
            the factor), where equal entries add up; :obj:`None` is the identity.
        right: Entries of :math:`\Phi_2`, likewise.
        num_nodes: ``N``; both factors are ``[N, N]``.

    Raises:
        ValueError: If shapes disagree, an index is out of range or heads differ.
        TypeError: If values are not floating point.
    """

    has_blocks = True

    def __init__(self, left: SparseEntries | None, right: SparseEntries | None, num_nodes: int) -> None:
        self._set(_factor(left, num_nodes, "left"), _factor(right, num_nodes, "right"), num_nodes)

    @classmethod
    def from_factors(cls, left: Factor | None, right: Factor | None, num_nodes: int) -> SparseFactorOperator:
        """Operator of factors that are sorted already."""
        operator = cls.__new__(cls)
        SparseFactorOperator._set(operator, left, right, num_nodes)
        return operator

    def _set(self, left: Factor | None, right: Factor | None, num_nodes: int) -> None:
        self.left, self.right, self.num_nodes = left, right, num_nodes
        factors = [factor for factor in (left, right) if factor is not None]
        self.heads = common_heads([factor.heads for factor in factors])
        if factors:
            self.dtype, self.device = factors[0].value.dtype, factors[0].value.device

    @property
    def T(self) -> SparseFactorOperator:
        return SparseFactorOperator.from_factors(self.right, self.left, self.num_nodes)

    @property
    def work(self) -> int:
        return sum(factor.pattern.nnz for factor in (self.left, self.right) if factor is not None)

    @property
    def num_pairs(self) -> int:
        return count_pairs(self._num_terms, self.work, lambda: (self._constant_pairs or self._joined)[0])

    @cached_property
    def _num_terms(self) -> int:
        if self.left is None or self.right is None:
            return max(self.work, self.num_nodes)
        hits = [torch.bincount(factor.pattern.col, minlength=self.num_nodes) for factor in (self.left, self.right)]
        return int(hits[0] @ hits[1])

    @cached_property
    @torch.inference_mode(False)
    def _constant_pairs(self) -> tuple[Pattern, Tensor] | None:
        """Pairs and entries on CPU where nothing is to be learned and all heads share the mask."""
        left, right = (factor or _identity(self) for factor in (self.left, self.right))
        learned = left.value.requires_grad or right.value.requires_grad
        if learned or self.heads is not None or self.device.type != "cpu":
            return None
        return sparse_product(left.pattern, left.value, right.pattern, right.value)

    @cached_property
    @torch.inference_mode(False)
    def _joined(self) -> tuple[Pattern, Tensor, Tensor, Tensor]:
        left, right = (factor or _identity(self) for factor in (self.left, self.right))
        return join(left.pattern, right.pattern)

    def pairs(self) -> tuple[Pattern, Tensor]:
        if self._constant_pairs is not None:
            return self._constant_pairs
        left, right = (factor or _identity(self) for factor in (self.left, self.right))
        pattern, mine, theirs, slot = self._joined
        a, b = left.value.index_select(0, mine), right.value.index_select(0, theirs)
        if a.dim() != b.dim():
            a, b = (value if value.dim() == 2 else value[:, None] for value in (a, b))
        terms = a * b
        return pattern, terms.new_zeros(pattern.nnz, *terms.shape[1:]).index_add(0, slot, terms)

    def blocks(self, layout: BlockLayout) -> list[Tensor]:
        left, right = (
            None if factor is None else (factor.pattern.row, factor.pattern.col, factor.value)
            for factor in (self.left, self.right)
        )
        return product_blocks(layout, left, left if self.right is self.left else right)

    def _matmul(self, x: Tensor) -> Tensor:
        if self.right is not None:
            x = self.right.T.matmul(x)
        return x if self.left is None else self.left.matmul(x)


def count_pairs(num_terms: int, work: int, pattern: Callable[[], Pattern]) -> int:
    """Entries in the support of a product of sparse factors, exact where listing it costs little, else a bound."""
    return num_terms if num_terms > MOST_PAIRS * max(work, 1) else pattern().nnz


def _identity(operator: MaskOperator) -> Factor:
    nodes = torch.arange(operator.num_nodes, device=operator.device)
    ones = torch.ones(operator.num_nodes, dtype=operator.dtype, device=operator.device)
    return Factor(Pattern(nodes, nodes, operator.num_nodes, operator.num_nodes), ones)


def _factor(entries: SparseEntries | None, num_nodes: int, name: str) -> Factor | None:
    if entries is None:
        return None
    index, value = entries
    if index.dim() != 2 or index.size(0) != 2 or value.dim() not in (1, 2) or value.size(0) != index.size(1):
        raise ValueError(
            f"'{name}' must be (index [2, nnz], value [nnz] or [nnz, H]) "
            f"(got {list(index.shape)} and {list(value.shape)})"
        )
    if index.is_floating_point() or not value.is_floating_point():
        raise TypeError(
            f"'{name}' must be an integer index and floating-point values (got {index.dtype} and {value.dtype})"
        )
    if index.numel() > 0 and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        raise ValueError(
            f"'{name}' has indices {int(index.min())} to {int(index.max())}, but nodes are 0 to {num_nodes - 1}"
        )
    row, order = index[0].sort(stable=True)
    return Factor(Pattern(row, index[1].index_select(0, order), num_nodes, num_nodes), value.index_select(0, order))
