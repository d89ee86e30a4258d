"""The entry-wise product of two masks."""

from typing import Any

import torch
from torch import Tensor

from pyg_topomask.operators.algebra import CombinedOperator
from pyg_topomask.operators.base import ARITHMETIC, MaskOperator, common_nodes
from pyg_topomask.operators.grf import GRFOperator
from pyg_topomask.operators.scaled import ConstantOperator, DiagonalScaledOperator
from pyg_topomask.operators.sparse_factor import Factor, SparseFactorOperator, entry_products
from pyg_topomask.ops.attention.mask import Rows, Support, evaluate, row_sums
from pyg_topomask.ops.memo import cached, once_per_batch
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.sparse import Pattern


class EntrywiseOperator(CombinedOperator):
    r"""Entry-wise product :math:`M_{ij} = A_{ij} B_{ij}` of masks on the same nodes, written ``op * op``.

    A product with ``x [N, C]`` takes the cheapest of these ways that there is:

    - :math:`A = \Phi_1 \Phi_2^\top` and :math:`B = \Psi_1 \Psi_2^\top` are sparse-factored. Then ``M`` is as well: row
      ``i`` of its factors is :math:`\Phi_{i} \otimes \Psi_{i}` (row-wise Khatri–Rao product). Cost: the non-zeros.
    - Both masks know their pairs. Cost: the pairs that both have.
    - Else the matrices are formed. Cost: :math:`O(N^2 C)`. Attention forms the blocks of each graph instead.

    Args:
        left, right: The masks; one without heads is used for every head of the other.

    Raises:
        ValueError: If the masks differ in their nodes or heads.
    """

    def __init__(self, left: MaskOperator, right: MaskOperator) -> None:
        super().__init__([left, right], common_nodes([left, right], "multiply"))
        self.left, self.right = left, right
        self.num_multiply_adds = min(self._costs.values(), default=self.num_nodes**2)

    def _like(self, operators: list[MaskOperator]) -> "EntrywiseOperator":
        return EntrywiseOperator(*operators)

    @cached
    def _costs(self) -> dict[str, int]:
        """Multiply-adds of a product with one column, of the ways that need not form the matrices."""
        costs, factors = {}, [_factors(operator) for operator in self.operators]
        if factors[0] is not None and factors[1] is not None:
            pairs = zip(factors[0].factor_pair, factors[1].factor_pair)
            rows = [a.pattern.rowptr.diff().long() * b.pattern.rowptr.diff() for a, b in pairs]
            costs["factors"] = int(sum(row.sum() for row in rows))
        if self.support is not None:
            costs["pairs"] = self.support.count()
        return costs

    @property
    def support(self) -> Support | None:
        first, second = (operator.support for operator in self.operators)
        if first is None or second is None:
            return None

        def pairs(rows: "Rows | None") -> tuple[Pattern, Tensor]:
            (left, a), (right, b) = first.pairs(rows), second.pairs(rows)
            pattern, *taken = _common_pairs(*left.nodes, *right.nodes, left.num_rows, left.num_cols)
            return pattern, entry_products(*(evaluate(x).index_select(0, entry) for x, entry in zip((a, b), taken)))

        return Support(
            pairs, lambda: min(first.count(), second.count()), lambda: torch.minimum(first.by_row(), second.by_row())
        )

    def _join_group(self, blocks: list[Tensor]) -> Tensor:
        return blocks[0] * blocks[1]

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        (a, b), (left, right) = errors, (row_sums(operator.bound).detach() for operator in self.operators)
        return a * right + b * left + a * b

    def to_dense(self) -> Tensor:
        return self.left.to_dense() * self.right.to_dense()

    def _matmul(self, x: Tensor) -> Tensor:
        costs = self._costs
        if not costs:
            dense = self.to_dense().to(x.dtype)
            return dense @ x if self.heads is None else torch.einsum("hij,jhc->ihc", dense, x)
        if min(costs, key=costs.__getitem__) == "factors":
            factors = [_factors(operator) for operator in self.operators]
            return _khatri_rao(*factors)._matmul(x)  # type: ignore[arg-type]
        assert self.support is not None
        return Factor(*self.support.pairs(None)).matmul(x)  # type: ignore[arg-type]


def entrywise(left: MaskOperator, right: MaskOperator) -> MaskOperator:
    """The product ``left * right``. Numbers and diagonals that scale a mask are factored out."""
    left, right = (op.operator if isinstance(op, ConstantOperator) else op for op in (left, right))
    for one, other in ((left, right), (right, left)):
        if isinstance(one, DiagonalScaledOperator):
            return DiagonalScaledOperator(entrywise(one.operator, other), one.left, one.right, one.batch)
    return EntrywiseOperator(left, right)


ARITHMETIC["entrywise"] = entrywise


def _factors(operator: MaskOperator) -> SparseFactorOperator | None:
    """The mask as sparse factors, if it has some."""
    if isinstance(operator, GRFOperator) and operator.walks.diagonal is None:
        return operator.factors
    return operator if isinstance(operator, SparseFactorOperator) else None


def _khatri_rao(left: SparseFactorOperator, right: SparseFactorOperator) -> SparseFactorOperator:
    """The entry-wise product of two sparse-factored masks, in sparse factors."""
    sides = [*zip(left.factor_pair, right.factor_pair)]
    patterns = [x for side in sides for factor in side for x in (factor.pattern.rowptr, factor.pattern.col)]
    products = _row_products(*patterns, left.num_nodes)
    first, second = (
        Factor(pattern, entry_products(a.value.index_select(0, of_a), b.value.index_select(0, of_b)))
        for (a, b), (pattern, of_a, of_b) in zip(sides, products)
    )
    return SparseFactorOperator(first, second, left.num_nodes)


@once_per_batch
def _row_products(*arguments: Any) -> list[tuple[Pattern, Tensor, Tensor]]:
    """Patterns of two row-wise Khatri–Rao products, and the two entries of each of their entries.

    The arguments are ``rowptr`` and ``col`` of both factors of the first product, of both factors of the second one,
    and the number of rows. Columns of the results are the pairs of columns that occur.
    """
    *tensors, num_rows = arguments
    rows, places, columns = [], [], []
    for rowptr, col, other_rowptr, other_col in (tensors[:4], tensors[4:]):
        row = torch.repeat_interleave(torch.arange(num_rows, device=col.device), rowptr.diff())
        first, last = (other_rowptr.long().index_select(0, row + end) for end in (0, 1))
        of_a, of_b = ragged_ranges(first, last - first)  # each entry, with the other factor's entries in its row
        rows.append(row.index_select(0, of_a))
        places.append((of_a, of_b))
        columns.append(col.index_select(0, of_a).long() * num_rows + other_col.index_select(0, of_b))
    used, column = torch.unique(torch.cat(columns), return_inverse=True)
    cols = column.split([len(x) for x in columns])
    return [(Pattern(row, col, num_rows, used.numel()), *of) for row, col, of in zip(rows, cols, places)]


@once_per_batch
def _common_pairs(
    row: Tensor, col: Tensor, other_row: Tensor, other_col: Tensor, num_rows: int, num_cols: int
) -> tuple[Pattern, Tensor, Tensor]:
    """The pairs that two lists of distinct pairs have in common, sorted, and their places in each list."""
    pairs = [x.long() * num_cols + y for x, y in ((row, col), (other_row, other_col))]
    pair, place = torch.cat(pairs).sort(stable=True)  # a common pair stands twice, that of the first list before
    twice = (pair[1:] == pair[:-1]).nonzero().squeeze(1)
    first, second = place[twice], place[twice + 1] - row.numel()
    return Pattern(row[first], col[first], num_rows, num_cols), first, second
