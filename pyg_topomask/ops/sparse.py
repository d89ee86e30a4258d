"""Products with sparse matrices of a fixed pattern: the only place that chooses a sparse back end.

On CPU, torch's compressed-row product (MKL) was measured to be 1.05 to 2.2 times as fast as ``torch_sparse``, and 4 to
11 times as fast as a gather and a scatter. Builds of torch without MKL use their own kernel. For 16 columns or more in
float32, `embedding_bag` was measured to be 1.1 to 2 times as fast as MKL (AMD EPYC, 3 to 30 entries per row), and for
64 or more 2.4 to 12 times.
"""

import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import embedding_bag, pad
from torch.utils._pytree import tree_map_only

from pyg_topomask import plan as plans
from pyg_topomask.checks import readable
from pyg_topomask.limits import limits
from pyg_topomask.ops.functions import Bilinear, Linear
from pyg_topomask.ops.memo import is_learned, kept_property, once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.operators import is_mapped

Result = TypeVar("Result")

# Columns from which `embedding_bag` is faster than MKL. In float64 it never is.
_BAG_COLUMNS = 16


class Pattern:
    """Positions of the entries of an ``[num_rows, num_cols]`` matrix, sorted by row, and their transposed order.

    Args:
        row: Row of each entry, shape ``[nnz]``, ascending; if :obj:`None`, found from ``rowptr`` when it is needed.
        col: Column of each entry, shape ``[nnz]``, in any order within a row.
        num_rows: Number of rows.
        num_cols: Number of columns.
        order: Node of each row and column of a square matrix whose rows and columns were permuted for better memory
            locality, shape ``[num_rows]``; row ``i`` is node ``i`` if :obj:`None`.
        rowptr: First entry of each row, followed by the number of entries, int32, shape ``[num_rows + 1]``; computed if
            :obj:`None`.

    Raises:
        ValueError: If there are 2^31 entries, rows or columns or more.
    """

    def __init__(
        self,
        row: Tensor | None,
        col: Tensor,
        num_rows: int,
        num_cols: int,
        order: Tensor | None = None,
        rowptr: Tensor | None = None,
    ) -> None:
        check_entries(max(col.numel(), num_rows, num_cols))
        if row is not None:
            self.row = row.int()
            rowptr = row_pointers(row, num_rows) if rowptr is None else rowptr
        if rowptr is None:
            raise ValueError("a pattern needs 'row' or 'rowptr'")
        self.rowptr, self.col = rowptr, col.int()  # [num_rows + 1], [nnz]
        self.num_rows, self.num_cols = num_rows, num_cols
        self.order, self.inverse = order, None if order is None else order.argsort()

    @classmethod
    @torch.compiler.disable
    def merge(cls, row: Tensor, col: Tensor, num_rows: int, num_cols: int) -> "tuple[Pattern, Tensor]":
        """Pattern of the distinct pairs of ``row [E]`` and ``col [E]``, sorted by (row, column), and the index of each
        pair's entry in it, shape ``[E]``. In the plan of a padded batch, pairs of the last row and column follow.
        """
        size = max(num_cols, 1)
        key = row.long() * size + col
        if not key.is_cuda and bool((key.diff() >= 0).all()):  # already sorted: about 10 times as fast
            key, entry = torch.unique_consecutive(key, return_inverse=True)
        else:
            key, entry = torch.unique(key, return_inverse=True)
        key = pad(key, (0, plans.padded(len(key)) - len(key)), value=num_rows * size - 1)
        return cls(key // size, key % size, num_rows, num_cols), entry

    def padded(self, value: Tensor) -> "tuple[Pattern, Tensor]":
        """The pattern and its entries ``[nnz]``; in the plan of a padded batch, followed by zeros as in `merge`."""
        more = plans.padded(self.nnz) - self.nnz
        if not more:
            return self, value
        rowptr = torch.cat([self.rowptr[:-1], self.rowptr[-1:] + more])
        col = pad(self.col, (0, more), value=self.num_cols - 1)
        return Pattern(None, col, self.num_rows, self.num_cols, rowptr=rowptr), pad(value, (0, more))

    def to(self, device: torch.device, non_blocking: bool = False) -> "Pattern":
        """The pattern on another device."""
        col, rowptr = (x.to(device, non_blocking=non_blocking) for x in (self.col, self.rowptr))
        order = None if self.order is None else self.order.to(device, non_blocking=non_blocking)
        return Pattern(None, col, self.num_rows, self.num_cols, order, rowptr)

    def arrange(self, x: Tensor) -> Tensor:
        """Permute rows of ``x`` ``[N, *]`` from the order of the nodes to the order of the pattern."""
        return permute_rows(x, self.order, self.inverse)

    def restore(self, x: Tensor) -> Tensor:
        """Undo `arrange`."""
        return permute_rows(x, self.inverse, self.order)

    def rows(self, start: int, stop: int) -> "tuple[Pattern, slice]":
        """Pattern of the rows from ``start`` to ``stop`` (`order` is ignored), and the range of their entries."""
        if (start, stop) == (0, self.num_rows):
            return self, slice(0, self.nnz)
        first, last = self.rowptr[[start, stop]].tolist()
        entries = slice(first, last)
        return Pattern(self.row[entries] - start, self.col[entries], stop - start, self.num_cols), entries

    def scipy(self, value: np.ndarray) -> csr_matrix:
        """The matrix of these entries ``[nnz]`` for SciPy."""
        shape = self.num_rows, self.num_cols
        return csr_matrix((value, to_numpy(self.col), to_numpy(self.rowptr)), shape=shape)

    @kept_property
    def row(self) -> Tensor:
        """Row of each entry, int32, shape ``[nnz]``."""
        if torch.compiler.is_compiling():
            entries = torch.arange(self.nnz, device=self.col.device, dtype=self.rowptr.dtype)
            return torch.searchsorted(self.rowptr, entries, right=True, out_int32=True) - 1
        rows = torch.arange(self.num_rows, device=self.col.device, dtype=torch.int32)
        return torch.repeat_interleave(rows, self.rowptr.diff(), output_size=self.nnz)

    @property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Row node and column node of each entry, shape ``[nnz]`` each."""
        if self.order is None:
            return self.row, self.col
        return self.order[self.row.long()], self.order[self.col.long()]

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self.col.numel()

    @kept_property
    def transposed(self) -> "tuple[Pattern, Tensor]":
        """Pattern of the transposed matrix, and the entry of this pattern for each of its entries, ``[nnz]``."""
        order = _order_by_column(self)
        row, col = (x.index_select(0, order) for x in (self.row, self.col))
        return Pattern(col, row, self.num_cols, self.num_rows, self.order), order


def to_numpy(x: Tensor) -> np.ndarray:
    """The values of a tensor. Within transforms of `torch.func`, new tensors have no memory that NumPy could share."""
    dtype = str(x.dtype).removeprefix("torch.")
    return np.array(x.tolist(), dtype) if loader.is_transformed() else x.detach().cpu().numpy()


def on_host(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compute a structure on CPU, and copy it to the device of the first argument, a tensor, unless others are learned.

    This is for structures whose sizes depend on values in every step: CUDA would wait in each of them, and waits once.
    """

    @wraps(function)
    def call(given: Tensor, *rest: Any) -> Result:
        if not given.is_cuda or any(isinstance(x, Tensor) and is_learned(x) for x in rest):
            return function(given, *rest)
        found = function(given.cpu(), *tree_map_only(Tensor, Tensor.cpu, rest))
        return tree_map_only((Tensor, Pattern), lambda x: x.to(given.device, non_blocking=True), found)

    return call


@once_per_batch
def taken(x: Tensor, positions: Tensor) -> Tensor:
    """Entries or columns of ``x [*, E]``, copied once per batch unless they are learned."""
    return x.index_select(-1, positions)


def check_entries(count: int) -> None:
    """Check that positions can be counted in 32 bits.

    Raises:
        ValueError: If they cannot.
    """
    if count > limits.entries:
        raise ValueError(
            f"a sparse matrix can have at most 2^31 - 1 entries, rows and columns (got {count:,}); use fewer keys, "
            "walks or heads, or divide the graph into parts (RandomPartitionLoader)"
        )


def row_pointers(row: Tensor, num_rows: int) -> Tensor:
    """First entry of each of the sorted rows, and the number of entries at the end, int32, ``[num_rows + 1]``."""
    rows = torch.arange(num_rows + 1, device=row.device, dtype=row.dtype)
    return torch.searchsorted(row.contiguous(), rows, out_int32=True)


class Combination(NamedTuple):
    """Entries that are sums of coefficients with weights. Compiled attention evaluates them row by row."""

    coeffs: Tensor
    """Shape ``[P, Q]``."""
    weights: Tensor
    """Shape ``[Q]``, or ``[H, Q]`` for entries that differ by head."""

    @property
    def values(self) -> Tensor:
        """Entries ``[P]`` or ``[P, H]``; each head's entries are contiguous."""
        return (self.weights @ self.coeffs.t()).t() if self.weights.dim() == 2 else self.coeffs @ self.weights


def spmm(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    """Sparse-dense product, differentiable in ``value`` and ``x``.

    Args:
        pattern: Positions of the entries.
        value: Entries, shape ``[nnz]``, or ``[nnz, H]`` for one matrix per head.
        x: Dense matrix, shape ``[num_cols, C]`` or ``[num_cols, H, C]``, of the dtype of ``value``: float32 or float64.

    Returns:
        Shape ``[num_rows, C]`` or ``[num_rows, H, C]``.
    """
    return _SpMM.of(value, x, pattern)


def sampled_product(pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
    """Inner products ``left[row] · right[col]`` at the entries of a pattern, differentiable in both.

    Args:
        pattern: Positions of the entries.
        left: Shape ``[num_rows, C]`` or ``[num_rows, H, C]``, float32 or float64.
        right: Shape ``[num_cols, C]`` or ``[num_cols, H, C]``.

    Returns:
        Shape ``[nnz]`` or ``[nnz, H]``.
    """
    return _SampledProduct.of(left, right, pattern)


@torch.no_grad()
def row_maximum(pattern: Pattern, value: Tensor) -> Tensor:
    """Largest entry of each row and head, ``[num_rows, H]``, of entries ``[nnz, H]``, without a gradient.

    It is −inf for rows without entries.
    """
    lowest = value.new_full((pattern.num_rows, value.size(1)), -torch.inf)
    return lowest.scatter_reduce(0, pattern.row.long()[:, None].expand_as(value), value, "amax")


def permute_rows(x: Tensor, order: Tensor | None, inverse: Tensor | None) -> Tensor:
    """``x[order]`` for a permutation and its inverse; ``x`` itself if ``order`` is :obj:`None`."""
    return x if order is None else _Permute.of(x, order, inverse)


def _order_by_column(pattern: Pattern) -> Tensor:
    """Permutation ``[nnz]`` that sorts entries by column and keeps the order within each column.

    On CPU, scipy sorts by counting. torch's sort took 18 times as long for 23,000 entries and 1.6 times as long for
    500,000 entries.
    """
    col, num_cols = pattern.col, pattern.num_cols
    if not readable(col) or col.numel() == 0:
        return col.sort(stable=True)[1]
    least, most = col.aminmax()
    if int(least) < 0 or int(most) >= num_cols:
        got = f"{int(least)} to {int(most)}"
        raise ValueError(f"columns of a pattern must lie between 0 and {num_cols - 1} (got {got})")
    return torch.from_numpy(pattern.scipy(np.arange(col.numel())).tocsc().data)


class _Permute(Linear):
    """``x[order]``. Its gradient is a gather; the gradient of plain indexing is a scatter, which is slower."""

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return x.index_select(0, order)

    @staticmethod
    def adjoint(order: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        return inverse, order


class _SpMM(Bilinear):
    """The gradients of this product and of the sampled product are such products, so higher derivatives exist."""

    @staticmethod
    def forward(value: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
        return _matmul(pattern, value, x)

    @staticmethod
    def gradients(
        grad: Tensor, value: Tensor, x: Tensor, needed: tuple[bool, bool], pattern: Pattern
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_value = sampled_product(pattern, grad, x) if needed[0] else None
        return grad_value, _transposed_spmm(pattern, value, grad) if needed[1] else None


class _SampledProduct(Bilinear):
    @staticmethod
    def forward(left: Tensor, right: Tensor, pattern: Pattern) -> Tensor:
        return _sampled(pattern, left, right)

    @staticmethod
    def gradients(
        grad: Tensor, left: Tensor, right: Tensor, needed: tuple[bool, bool], pattern: Pattern
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_left = spmm(pattern, grad, right) if needed[0] else None
        return grad_left, _transposed_spmm(pattern, grad, left) if needed[1] else None


def _matmul(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # compiled code joins the parts
        terms = value.view(*value.shape, *[1] * (x.dim() - value.dim())) * x.index_select(0, pattern.col)
        return x.new_zeros(pattern.num_rows, *x.shape[1:]).index_add(0, pattern.row, terms)
    if is_mapped(value, x):
        return _each_product(pattern.rowptr, pattern.col, pattern.num_cols, value, x)
    if pattern.nnz == 0 or x.numel() == 0:
        return x.new_zeros(pattern.num_rows, *x.shape[1:])
    if value.dim() == 2:
        product = _matmul(_joined_heads(pattern, value.size(1)), value.t().flatten(), x.transpose(0, 1).flatten(0, 1))
        return product.view(value.size(1), -1, x.size(2)).transpose(0, 1)
    if x.device.type == "cpu" and x.dtype == torch.float32 and x.size(1) >= _BAG_COLUMNS:
        ends, weights = pattern.rowptr, value.contiguous()
        return embedding_bag(
            pattern.col, x.contiguous(), ends, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
    matrix = _csr_tensor(pattern, value)
    if x.device.type == "cpu" and not torch.backends.mkl.is_available():
        return torch.sparse.mm(matrix, x, "sum")
    return matrix @ x


@torch.library.custom_op("topomask::sparse_product", mutates_args=())
def _each_product(rowptr: Tensor, col: Tensor, num_cols: int, value: Tensor, x: Tensor) -> Tensor:
    """`_matmul` where autograd maps it: torch has no rule for sparse matrices, and calls an operator for each entry."""
    return _matmul(_pattern_of(rowptr, col, num_cols), value, x)


def _pattern_of(rowptr: Tensor, col: Tensor, num_cols: int) -> Pattern:
    return Pattern(None, col, rowptr.numel() - 1, num_cols, rowptr=rowptr)


def _transposed_spmm(pattern: Pattern, value: Tensor, x: Tensor) -> Tensor:
    transposed, order = pattern.transposed
    return spmm(transposed, value.index_select(0, order), x)


def _sampled(pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return (left.index_select(0, pattern.row) * right.index_select(0, pattern.col)).sum(-1)
    if is_mapped(left, right):
        return _each_sampled(pattern.rowptr, pattern.col, pattern.num_cols, left, right)
    if pattern.nnz == 0 or left.numel() == 0:
        return left.new_zeros(pattern.nnz, *left.shape[1:-1])
    if left.dim() == 3:
        heads = left.size(1)
        left, right = (x.transpose(0, 1).flatten(0, 1) for x in (left, right))
        return _sampled(_joined_heads(pattern, heads), left, right).view(heads, -1).t()
    if pattern.nnz > pattern.num_rows * pattern.num_cols:  # repeated entries; torch refuses so many
        return (left.index_select(0, pattern.row.long()) * right.index_select(0, pattern.col.long())).sum(-1)
    zeros = _csr_tensor(pattern, left.new_zeros(pattern.nnz))
    # The values are a view of a sparse matrix, which torch.compile cannot trace; a copy is not.
    return torch.sparse.sampled_addmm(zeros, left, right.t(), beta=0.0).values().clone()


@torch.library.custom_op("topomask::sampled_product", mutates_args=())
def _each_sampled(rowptr: Tensor, col: Tensor, num_cols: int, left: Tensor, right: Tensor) -> Tensor:
    """`_sampled` where autograd maps it."""
    return _sampled(_pattern_of(rowptr, col, num_cols), left, right)


def _joined_heads(pattern: Pattern, heads: int) -> Pattern:
    """The block-diagonal matrix of all heads, ``[H num_rows, H num_cols]``: one product serves all of them."""
    check_entries(heads * max(pattern.nnz, pattern.num_rows, pattern.num_cols))
    rowptr, col = _joined_positions(pattern.rowptr, pattern.col, pattern.num_cols, heads)
    return Pattern(None, col, heads * pattern.num_rows, heads * pattern.num_cols, rowptr=rowptr)


@partial(once_per_batch, traced=True)
def _joined_positions(rowptr: Tensor, col: Tensor, num_cols: int, heads: int) -> tuple[Tensor, Tensor]:
    head = torch.arange(heads, device=col.device, dtype=torch.int32)[:, None]
    ends = rowptr[1:] + col.numel() * head
    return torch.cat([rowptr[:1], ends.flatten()]), (col + num_cols * head).flatten()


def _csr_tensor(pattern: Pattern, value: Tensor) -> Tensor:
    shape = pattern.num_rows, pattern.num_cols
    parts = pattern.rowptr, pattern.col, value
    return torch.sparse_csr_tensor(*parts, shape, device=value.device, check_invariants=False)


with warnings.catch_warnings():  # torch says at the first such tensor of a process that they are in beta
    warnings.simplefilter("ignore")
    _nowhere = torch.zeros(0, dtype=torch.int64, device="cpu")
    _csr_tensor(Pattern(_nowhere, _nowhere, 0, 0), _nowhere.float())
