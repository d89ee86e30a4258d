"""The interface of masks that attention uses. Operators have it, and a plain tensor is read as a dense mask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import readable
from pyg_topomask.limits import limits
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import absolute, at_least_float32, non_negative
from pyg_topomask.ops.sparse import Combination, Pattern, spmm

Rows = tuple[int, int]
"""First row, and last row + 1."""

Entries = Tensor | Combination
"""Entries of pairs, ``[P]`` or ``[P, H]``, perhaps not evaluated yet."""

DENSE_COST = 0.06
"""Time of a multiply-add of dense matrices, relative to one of sparse matrices."""


@dataclass(frozen=True)
class Support:
    """The pairs of nodes on which a mask may be non-zero. They are listed when they are needed."""

    pairs: Callable[[Rows | None], tuple[Pattern, Entries]]
    """Lists pairs and entries: those of some rows in their order, ``[stop - start, N]``; or those of all rows, which
    may be permuted (`Pattern.order`), if the rows are :obj:`None`. The bounding mask has the same pairs in this order.
    """
    count: Callable[[], int]
    """Number of pairs, or an upper bound if listing them is expensive."""
    by_row: Callable[[], Tensor]
    """Upper bound on the pairs of each row, ``[N]``, int64."""
    kept: bool = False
    """Whether the pairs are listed once for all layers."""


@dataclass(frozen=True)
class DenseBlocks:
    """The dense blocks of a mask, one for each graph of a batch."""

    make: Callable[[BlockLayout], list[Tensor]]
    """Blocks of the transposed mask for each group of graphs of a layout, ``[g, n, n]`` or ``[g, H, n, n]``.

    ``n`` is the number of nodes of the group's largest graph; entries beyond a smaller graph are zero. ``g`` may be 1
    if all graphs of the group share a block. Row ``j``, column ``i`` is the weight with which node ``i``
    reads node ``j``. Raises ValueError if the mask connects two graphs of the layout.
    """
    work: Callable[[list[int]], float] = lambda sizes: 0.0
    """Multiply-adds of making the blocks of graphs with so many nodes, for one head; 0 if they are kept."""
    shared: bool = False
    """Whether graphs of equal size have the same block."""


@dataclass(frozen=True)
class Product:
    """Products with a mask: ``product(x)`` is ``mask @ x``."""

    apply: Callable[[Tensor], Tensor]
    """The product, without a check of ``x``."""
    count: Callable[[], int]
    """Multiply-adds for one column of one head; attention chooses its path by them."""
    cost: float = 1.0
    """Time of a multiply-add of attention's products with the mask, relative to one of sparse matrices."""
    contract: Callable[[Tensor, Tensor, Tensor], Tensor | None] = lambda q, k, v: None
    r"""Sums :math:`\sum_{jr} q_{ir} M_{ij} k_{jr} v_j` for ``q, k [N, H, R]`` and ``v [N, H, D]``, shape ``[N, H, D]``;
    :obj:`None` if they are not faster than a product with the columns ``k_r v``.
    """
    stored: bool = False
    """Whether the matrix is stored, so that `AttentionMask.to_dense` costs nothing."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)


@dataclass(frozen=True)
class Part:
    """A part of a mask: the mask is the sum of its parts, or each part serves some of its heads."""

    mask: "AttentionMask"
    heads: slice | None = None
    """The heads that it serves; all if :obj:`None`."""
    scale: Tensor | None = None
    """Factors of its rows, ``[N]`` or ``[N, H]``."""
    batch: Tensor | None = None
    """The graph of each node if the mask is ones within each graph, where attention needs no mask."""


class AttentionMask:
    """What attention asks of a mask, ``[N, N]`` or one for each head."""

    num_nodes: int
    """``N``."""
    heads: int | None = None
    """``H`` if every head has its own mask, :obj:`None` if all share one."""
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    @property
    def bound(self) -> "AttentionMask":
        """The bounding mask, by which attention under this mask normalises."""
        raise NotImplementedError

    @property
    def eps(self) -> float:
        """Machine epsilon of the coarsest dtype among the numbers from which the entries are computed."""
        return torch.finfo(self.dtype).eps

    @property
    def error(self) -> float | Tensor:
        r"""Absolute error of products; 0 if they are exact up to rounding.

        It is the smallest known :math:`e` with :math:`|(\mathrm{op}\, x - M x)_i| \le e_i \|x\|_2`, where the norm is
        over the nodes of the row's graph; so each entry is known up to :math:`e`. It is a number, or a tensor ``[N]``
        or ``[N, H]`` without a gradient if it differs by row. In a batch, each graph must have its own error, so that
        no result depends on the other graphs.
        """
        return 0.0

    @property
    def support(self) -> Support | None:
        """The pairs of nodes on which the mask may be non-zero; :obj:`None` if they are not known to be few."""
        return None

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        """The dense block of each graph of a batch; :obj:`None` if it costs more than products with the mask."""
        return None

    @property
    def parts(self) -> list[Part]:
        """The masks of which it consists, which attention computes one by one; the mask itself by default."""
        return [Part(self)]

    def to_dense(self) -> Tensor:
        """The matrix."""
        raise NotImplementedError

    @property
    def product(self) -> Product:
        """The product with the mask, also for code that ``torch.compile`` traces: it knows no operators of classes."""
        raise NotImplementedError

    def __matmul__(self, x: Tensor) -> Tensor:
        return self.product(x)


class TensorMask(AttentionMask):
    """Mask from a tensor of shape ``[N, N]``, or ``[H, N, N]`` for one mask per head.

    Raises:
        ValueError: If the tensor has another shape, or is complex or sparse.
    """

    def __init__(self, matrix: Tensor) -> None:
        if matrix.dim() not in (2, 3) or matrix.size(-1) != matrix.size(-2):
            raise ValueError(f"a dense mask must be [N, N] or [H, N, N] (got {list(matrix.shape)})")
        if matrix.is_complex() or matrix.layout != torch.strided:
            raise ValueError(f"a dense mask must be real and strided (got {matrix.dtype}, {matrix.layout})")
        self.matrix = matrix if matrix.is_floating_point() else matrix.float()
        self.num_nodes, self.heads = matrix.size(-1), matrix.size(0) if matrix.dim() == 3 else None
        self.dtype, self.device = self.matrix.dtype, matrix.device

    @property
    def bound(self) -> Any:
        """Mask of the absolute values; this mask itself if no entry is negative."""
        return self if non_negative(self.matrix) else type(self)(absolute(self.matrix))

    @property
    def T(self) -> Any:
        """The transposed mask."""
        return type(self)(self.matrix.mT)

    def to_dense(self) -> Tensor:
        """The tensor."""
        return self.matrix

    def _matmul(self, x: Tensor) -> Tensor:
        matrix = self.matrix.to(x.dtype)
        return matrix @ x if self.heads is None else (matrix @ x.transpose(0, 1)).transpose(0, 1)

    @property
    def product(self) -> Product:
        """The product of matrices."""
        return Product(self._matmul, lambda: self.num_nodes**2, DENSE_COST, stored=True)


class PatternMask(AttentionMask):
    """Mask of ones on the pairs of a pattern, known by its pairs alone."""

    eps = 0.0

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.num_nodes, self.device = pattern, pattern.num_rows, pattern.col.device

    @property
    def bound(self) -> "PatternMask":
        """The mask itself."""
        return self

    @property
    def product(self) -> Product:
        """Sums over the pairs."""
        return Product(lambda x: spmm(self.pattern, x.new_ones(self.pattern.nnz), x), lambda: self.pattern.nnz)

    @property
    def support(self) -> Support:
        """The pattern."""
        ones = torch.ones((), device=self.device).expand(self.pattern.nnz)

        def pairs(rows: "Rows | None") -> tuple[Pattern, Tensor]:
            pattern = self.pattern if rows is None else self.pattern.rows(*rows)[0]
            return pattern, ones[: pattern.nnz]

        return Support(pairs, lambda: self.pattern.nnz, lambda: self.pattern.rowptr.diff(), kept=True)


def evaluate(entries: Entries) -> Tensor:
    """Entries ``[P]`` or ``[P, H]``."""
    return entries.values if isinstance(entries, Combination) else entries


def read_mask(mask: AttentionMask | Tensor, q: Tensor, batch: Tensor | None) -> AttentionMask:
    """Check the mask of attention with queries ``q`` ``[N, H, R]``; read a tensor as a dense mask.

    Raises:
        ValueError: If its number of nodes or heads differs from that of ``q``, or a dense part joins graphs (on CPU).
        TypeError: If it is neither an operator nor a tensor.
    """
    if isinstance(mask, Tensor):
        mask = TensorMask(mask)
    if not isinstance(mask, AttentionMask):
        raise TypeError(f"'mask' must be a MaskOperator or a tensor (got {type(mask).__name__})")
    if mask.num_nodes != q.size(0):
        raise ValueError(
            f"the mask is for {mask.num_nodes} nodes, but 'q' has {q.size(0)} rows; is it of another batch?"
        )
    if mask.heads is not None and mask.heads != q.size(1):
        raise ValueError(
            f"the mask has {mask.heads} heads, but 'q' has {q.size(1)}: give both the same number, or use one mask for "
            "all heads"
        )
    if batch is not None:
        _check_disjoint(mask, batch)
    return mask


def _check_disjoint(mask: AttentionMask, batch: Tensor) -> None:
    """Refuse a dense mask, or dense parts of a mask, that join graphs, if they are on the CPU. Raises ValueError."""
    for part in mask.parts:
        if part.mask is not mask:
            _check_disjoint(part.mask, batch)
    if isinstance(mask, TensorMask) and readable(mask.matrix):
        joins = (mask.matrix != 0) & (batch[:, None] != batch)
        if bool(joins.any()):
            row, col = joins.nonzero()[0, -2:].tolist()
            raise ValueError(
                f"the mask joins nodes {row} and {col} of different graphs: multiply it by (batch[:, None] == batch)"
            )


def row_errors(mask: AttentionMask) -> Tensor | None:
    """Absolute error of the entries of each row, shape ``[N, H or 1]``; :obj:`None` if products are exact."""
    error = mask.error
    if isinstance(error, Tensor):
        return error.reshape(-1, 1).expand(mask.num_nodes, 1) if error.dim() < 2 else error
    return torch.full((mask.num_nodes, 1), error, device=mask.device) if error else None


def row_sums(mask: AttentionMask) -> Tensor:
    """Sums of the entries of each row, shape ``[N, H or 1]``.

    If the pairs are kept with coefficients, these are added up once per batch; their weights alone are learned.
    """
    support = mask.support
    if support is not None and support.kept and plans.once("sums", lambda: _has_few_pairs(mask, support)):
        pattern, entries = support.pairs(None)
        if isinstance(entries, Combination):
            sums = pattern.restore(_sums_by_row(entries.coeffs, pattern.rowptr))
            return (sums[:, None] * entries.weights).sum(-1)
    sizes = (mask.num_nodes, 1) if mask.heads is None else (mask.num_nodes, mask.heads, 1)
    return mask.product(torch.ones(sizes, dtype=mask.dtype, device=mask.device)).flatten(1)


def _has_few_pairs(mask: AttentionMask, support: Support) -> bool:
    return support.count() <= limits.per_stored * mask.product.count()


def rows_of(mask: Any, rows: Tensor) -> Tensor:
    """Rows of an operator as columns ``[N, R]``, or ``[N, H, R]``, by a product of the transposed operator."""
    chosen = torch.zeros(mask.num_nodes, rows.numel(), dtype=mask.dtype, device=mask.device)
    chosen[rows, torch.arange(rows.numel(), device=mask.device)] = 1
    return mask.T.product(chosen if mask.heads is None else chosen[:, None].expand(-1, mask.heads, -1))


@once_per_batch
def _sums_by_row(coeffs: Tensor, rowptr: Tensor) -> Tensor:
    terms = coeffs.t().flatten().view(coeffs.size(1), coeffs.size(0))  # contiguous(), with the strides of that
    (terms,) = at_least_float32(terms)
    ends = rowptr.long().expand(len(terms), -1).contiguous()
    return torch.segment_reduce(terms, "sum", offsets=ends, axis=1).t()
