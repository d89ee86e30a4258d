"""The entry-wise product of two masks, for kinds of masks whose product is as fast as the factors."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_topomask.operators.base import ARITHMETIC, MaskOperator, common_heads, common_nodes
from pyg_topomask.operators.dense import DenseOperator
from pyg_topomask.operators.grf import GRFOperator
from pyg_topomask.operators.low_rank import LowRankOperator
from pyg_topomask.operators.scaled import DiagonalScaledOperator
from pyg_topomask.operators.sparse_factor import Factor, SparseFactorOperator
from pyg_topomask.operators.toeplitz import ToeplitzOperator
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.sparse import Pattern


def entrywise_product(left: MaskOperator, right: MaskOperator) -> MaskOperator:
    r"""Mask with the entries :math:`A_{ij} B_{ij}`, written ``op * op``.

    The kind of the product depends on the factors. Two sparse-factored masks give a sparse-factored mask, whose factors
    are row-wise Khatri–Rao products. Two Toeplitz masks on the same grid give a Toeplitz mask. Two low-rank masks give
    a low-rank mask, whose rank is the product of their ranks. Two dense masks give a dense mask. Numbers and diagonals
    that scale a mask are factored out first.

    Raises:
        ValueError: If the masks differ in nodes or heads, or have different grids or graphs.
        TypeError: If no fast product of these two kinds of masks is known.
    """
    common_nodes([left, right], "multiply")
    common_heads([left.heads, right.heads])
    for one, other in ((left, right), (right, left)):
        if isinstance(one, DiagonalScaledOperator):
            return DiagonalScaledOperator(entrywise_product(one.operator, other), one.left, one.right, one.batch)
    left, right = (_factors(op) for op in (left, right))
    if isinstance(left, SparseFactorOperator) and isinstance(right, SparseFactorOperator):
        return _sparse_factored(left, right)
    if isinstance(left, ToeplitzOperator) and isinstance(right, ToeplitzOperator):
        return _toeplitz(left, right)
    if isinstance(left, LowRankOperator) and isinstance(right, LowRankOperator):
        return _low_rank(left, right)
    if isinstance(left, DenseOperator) and isinstance(right, DenseOperator):
        return DenseOperator(left.matrix * right.matrix)
    raise TypeError(
        f"no fast entry-wise product of {type(left).__name__} and {type(right).__name__} is known; for small graphs "
        "multiply DenseOperator(op.to_dense())"
    )


ARITHMETIC["entrywise"] = entrywise_product


def _factors(op: MaskOperator) -> MaskOperator:
    """The sparse factors of a mask of walks without a diagonal of its own; other masks unchanged."""
    return op.factors if isinstance(op, GRFOperator) and op.walks.diagonal is None else op


def _toeplitz(left: ToeplitzOperator, right: ToeplitzOperator) -> ToeplitzOperator:
    grids = [(op.grid_shape, op.num_graphs) for op in (left, right)]
    if grids[0] != grids[1]:
        raise ValueError(f"Toeplitz masks to multiply must have the same grids and number of graphs (got {grids})")
    return ToeplitzOperator(left.weight * right.weight, left.grid_shape, left.num_graphs)


def _low_rank(left: LowRankOperator, right: LowRankOperator) -> LowRankOperator:
    batch = left.batch if left.batch is not None else right.batch
    if left.batch is not None and right.batch is not None and not torch.equal(left.batch, right.batch):
        raise ValueError("low-rank masks to multiply must have the same 'batch'")
    first, second = (
        (a[..., :, None] * b[..., None, :]).flatten(-2) for a, b in ((left.left, right.left), (left.right, right.right))
    )
    return LowRankOperator(first, second, batch)


def _sparse_factored(left: SparseFactorOperator, right: SparseFactorOperator) -> SparseFactorOperator:
    first, second = (_khatri_rao(*factors) for factors in zip(left.factor_pair, right.factor_pair))
    used, column = torch.unique(torch.cat([first[1], second[1]]), return_inverse=True)
    num_cols = max(used.numel(), left.num_nodes + 1)  # a factor with N columns would have nodes as columns
    a, b = (
        Factor(Pattern(row, col, left.num_nodes, num_cols), value)
        for (row, _, value), col in zip((first, second), column.split([first[1].numel(), second[1].numel()]))
    )
    return SparseFactorOperator.from_factors(a, b, left.num_nodes)


def _khatri_rao(a: Factor, b: Factor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns (pairs of columns) and entries of the row-wise Khatri–Rao product, sorted by row."""
    first, last = (b.pattern.rowptr.long().index_select(0, a.pattern.row + end) for end in (0, 1))
    of_a, of_b = ragged_ranges(first, last - first)  # entries of a, each with the entries of b in its row
    row = a.pattern.row.index_select(0, of_a)
    first, second = a.value.index_select(0, of_a), b.value.index_select(0, of_b)
    if first.dim() != second.dim():
        first, second = (x if x.dim() == 2 else x[:, None] for x in (first, second))
    column = a.pattern.col.index_select(0, of_a).long() * b.pattern.num_cols + b.pattern.col.index_select(0, of_b)
    return row, column, first * second
