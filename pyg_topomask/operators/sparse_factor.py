"""Masks that are products of two sparse matrices."""

from collections.abc import Callable

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_floating
from pyg_topomask.limits import limits
from pyg_topomask.operators.base import MaskOperator, common_heads
from pyg_topomask.ops.attention.mask import DenseBlocks, Rows, Support
from pyg_topomask.ops.blocks import BlockLayout, product_blocks, product_work
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.memo import cached, is_learned, kept_property
from pyg_topomask.ops.numerics import absolute, at_least_float32, non_negative
from pyg_topomask.ops.products.factors import Meeting, sparse_product
from pyg_topomask.ops.sparse import Pattern, spmm
from pyg_topomask.typing import SparseEntries


class Factor:
    """One sparse factor: distinct positions sorted by row, and entries that are shared by heads or per head."""

    def __init__(self, pattern: Pattern, value: Tensor) -> None:
        self.pattern, self.value = pattern, value

    @property
    def heads(self) -> int | None:
        """``H`` if every head has its own entries."""
        return self.value.size(1) if self.value.dim() == 2 else None

    @property
    def T(self) -> "Factor":
        """The transposed factor."""
        pattern, order = self.pattern.transposed
        return Factor(pattern, self.value.index_select(0, order))

    @property
    def absolute(self) -> "Factor":
        """The factor with absolute entries; the factor itself if no entry is negative."""
        return self if non_negative(self.value) else Factor(self.pattern, absolute(self.value))

    def rows(self, start: int, stop: int) -> "Factor":
        """The rows from ``start`` to ``stop``."""
        pattern, entries = self.pattern.rows(start, stop)
        return Factor(pattern, self.value[entries])

    def matmul(self, x: Tensor) -> Tensor:
        """Product with ``[N, C]``, or with ``[N, H, C]`` for each head."""
        value = self.value.to(x.dtype)
        if x.dim() == 3 and value.dim() == 1:
            return spmm(self.pattern, value, x.flatten(1)).view(self.pattern.num_rows, *x.shape[1:])
        return spmm(self.pattern, value, x)


class SparseFactorOperator(MaskOperator):
    r"""Product of two sparse factors, :math:`M = \Phi_1 \Phi_2^\top`.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eq. 10 (graph random features); Choromanski et al., ICML 2022,
    arXiv:2107.07999, Section 4.2 (RWGNK).
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(\mathrm{nnz}\, C)`, two sparse products.

    Args:
        left: Entries ``(index [2, nnz], value [nnz] or [nnz, H])`` of :math:`\Phi_1`, where ``index`` is (row, column
            of the factor) and equal entries add up; or a `Factor`; the identity if :obj:`None`.
        right: Entries of :math:`\Phi_2`, in the same form.
        num_nodes: ``N``; both factors are ``[N, N]``.

    Raises:
        ValueError: If shapes disagree, an index is out of range or the numbers of heads differ.
        TypeError: If values are not floating point.
    """

    def __init__(
        self, left: SparseEntries | Factor | None, right: SparseEntries | Factor | None, num_nodes: int
    ) -> None:
        self.left, self.right = read_factor(left, num_nodes, "left"), read_factor(right, num_nodes, "right")
        self.num_nodes = num_nodes
        factors = [factor for factor in (self.left, self.right) if factor is not None]
        self.heads = common_heads([factor.heads for factor in factors])
        self.numbers = tuple(factor.value for factor in factors)
        self.num_multiply_adds = sum(factor.pattern.nnz for factor in factors)
        if factors:
            self.dtype, self.device = self.numbers[0].dtype, self.numbers[0].device

    @cached
    def _meeting(self) -> Meeting:
        return Meeting(*(factor.pattern for factor in self.factor_pair))

    @property
    def factor_pair(self) -> tuple[Factor, Factor]:
        """Both factors, with the entries of an identity that was given as `None`."""
        return self.left or _identity(self), self.right or _identity(self)

    @property
    def T(self) -> "SparseFactorOperator":
        return SparseFactorOperator(self.right, self.left, self.num_nodes)

    @property
    def bound(self) -> "SparseFactorOperator":
        left, right = (None if factor is None else factor.absolute for factor in (self.left, self.right))
        if left is self.left and right is self.right:
            return self
        bound = SparseFactorOperator(left, left if self.right is self.left else right, self.num_nodes)
        bound._meeting, bound.keeps_pairs = self._meeting, False  # the same pairs in the same order
        return bound

    @property
    def support(self) -> Support:
        kept = self.keeps_pairs if self.left and self.right else True
        return Support(self._list_pairs, self._count_pairs, lambda: self._meeting.counts.pairs_by_row, kept)

    def _count_pairs(self) -> int:
        if self.left is None or self.right is None:
            return self.num_nodes if self.left is self.right else self.num_multiply_adds
        return count_pairs(
            self._meeting.counts.total,
            self.num_multiply_adds,
            lambda: (self._constant_pairs if self.keeps_pairs else self._meeting.joined)[0],
        )

    @cached
    def keeps_pairs(self) -> bool:
        """Whether the pairs are constant and computed once: on CPU, if nothing is learned and heads share the mask.

        There must be no negative entries: `sparse_product` omits pairs whose terms cancel, and the bounding mask has
        them.
        """
        if plans.reading() or any(map(is_learned, self.numbers)) or self.heads is not None or self.device.type != "cpu":
            return False
        return all(map(non_negative, self.numbers))

    @kept_property
    def _constant_pairs(self) -> tuple[Pattern, Tensor]:
        left, right = self.factor_pair
        return sparse_product(left.pattern, left.value, right.pattern, right.value)

    def _list_pairs(self, rows: Rows | None) -> tuple[Pattern, Tensor]:
        if rows is not None:
            part = SparseFactorOperator(self.factor_pair[0].rows(*rows), self.right, self.num_nodes)
            part.keeps_pairs = self.keeps_pairs
            return part._list_pairs(None)
        if self.left is None or self.right is None:
            factor = self.left or (self.right or _identity(self)).T
            (value,) = at_least_float32(factor.value)
            return factor.pattern, value
        if self.keeps_pairs:
            return self._constant_pairs
        left, right = self.factor_pair
        pattern, left_entry, right_entry, pair = self._meeting.joined
        terms = entry_products(left.value.index_select(0, left_entry), right.value.index_select(0, right_entry))
        return pattern, terms.new_zeros(pattern.nnz, *terms.shape[1:]).index_add(0, pair, terms)

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, self._block_work)

    def _block_work(self, sizes: list[int]) -> float:
        one = self.left is None or self.right is None
        return float(sum(n * n for n in sizes)) if one else product_work(sizes, self.num_multiply_adds)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        triples = (None if f is None else (f.pattern.row, f.pattern.col, f.value) for f in (self.left, self.right))
        return product_blocks(layout, *triples)

    def _matmul(self, x: Tensor) -> Tensor:
        if self.right is not None:
            x = self.right.T.matmul(x)
        return x if self.left is None else self.left.matmul(x)


def count_pairs(num_terms: int, num_entries: int, pattern: Callable[[], Pattern]) -> int:
    """Number of entries in the support of a product of sparse factors; an upper bound if listing it is expensive."""
    cheap = num_terms <= min(limits.per_stored * max(num_entries, 1), limits.entries)
    return pattern().nnz if cheap else num_terms


def entry_products(a: Tensor, b: Tensor) -> Tensor:
    """Products of entries ``[P]`` or ``[P, H]``; those that heads share multiply the entry of every head."""
    if a.dim() != b.dim():
        a, b = (value if value.dim() == 2 else value[:, None] for value in (a, b))
    return a * b


def _identity(operator: MaskOperator) -> Factor:
    nodes = torch.arange(operator.num_nodes, device=operator.device)
    ones = torch.ones(operator.num_nodes, dtype=operator.dtype, device=operator.device)
    return Factor(Pattern(nodes, nodes, operator.num_nodes, operator.num_nodes), ones)


def read_factor(entries: SparseEntries | Factor | None, num_nodes: int, name: str) -> Factor | None:
    """The factor of these entries, in which equal ones are added. Raises ValueError and TypeError."""
    if entries is None or isinstance(entries, Factor):
        return entries
    index, value = entries
    check_edges(index, num_nodes, None, name)
    check_floating(name, value)
    if value.dim() not in (1, 2) or value.size(0) != index.size(1):
        raise ValueError(
            f"values of '{name}' must be [{index.size(1)}] or [{index.size(1)}, H] (got {list(value.shape)})"
        )
    pattern, entry = Pattern.merge(*index, num_nodes, num_nodes)
    # Equal entries must be added before absolute values are taken.
    return Factor(pattern, value.new_zeros(pattern.nnz, *value.shape[1:]).index_add(0, entry, value))
