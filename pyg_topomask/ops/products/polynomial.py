r"""Products with polynomials of a sparse matrix, :math:`\sum_k c_k P_k(A)\, x`, in powers or Chebyshev polynomials."""

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.limits import limits
from pyg_topomask.ops.blocks import BlockLayout, fill_blocks
from pyg_topomask.ops.functions import Bilinear
from pyg_topomask.ops.memo import is_learned, once_per_batch
from pyg_topomask.ops.products.slices import SlicedAttention, with_all_columns
from pyg_topomask.ops.sparse import Pattern, spmm, taken

# Terms of columns are computed in multiples of this number.
_AT_ONCE = 4

# Nodes of the largest graph up to which dense matrices are multiplied, by type of device.
_MOST_DENSE = {"cpu": 256, "cuda": 1024}


class Basis(NamedTuple):
    """Polynomials of the sparse matrix ``A`` with entries ``value [nnz]`` at ``pattern``.

    The polynomials are powers, :math:`P_{k + 1} = A P_k`, or Chebyshev polynomials,
    :math:`P_{k + 1} = 2 A P_k - P_{k - 1}`. The latter stay small if the spectrum of ``A`` is within [−1, 1].
    """

    pattern: Pattern
    value: Tensor
    chebyshev: bool

    @property
    def is_symmetric(self) -> bool:
        """Whether ``A`` equals its transpose up to rounding."""
        return not is_learned(self.value) and _is_symmetric(self.value, self.pattern)

    @property
    def T(self) -> "Basis":
        """The polynomials of the transposed matrix."""
        pattern, order = self.pattern.transposed
        return Basis(pattern, taken(self.value, order), self.chebyshev)

    def terms(self, x: Tensor, count: int) -> Iterator[Tensor]:
        """The first ``count`` terms :math:`P_k(A)\\, x` for ``x [N, C]``, differentiable."""
        value = self.value.to(x.dtype)
        double = 2 * value if self.chebyshev else value
        return _terms(partial(spmm, self.pattern, value), partial(spmm, self.pattern, double), self.chebyshev, x, count)


def polynomial_product(basis: Basis, coeffs: Tensor, group: Tensor | None, x: Tensor) -> Tensor:
    r"""Sum :math:`\sum_k c_k P_k(A)\, x`.

    Args:
        basis: The polynomials. If their matrix is learned, all terms are kept for the backward pass. Otherwise none is
            kept, and they are computed again.
        coeffs: Coefficients by group of rows and by head, shape ``[K + 1, G, H]``; ``G`` and ``H`` may be 1. With
            several groups, ``A`` must have no entry between two of them.
        group: Group of each row, shape ``[N]``; one group if :obj:`None`.
        x: Shape ``[N, H, C]``.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``coeffs``, ``x`` and the entries of ``A``.
    """
    if is_learned(basis.value):
        return _sum(basis, coeffs, group, x)
    return _Product.of(coeffs, x, basis, group)


def _sum(basis: Basis, coeffs: Tensor, group: Tensor | None, x: Tensor) -> Tensor:
    out: Tensor | None = None
    for coeff, term in zip(coeffs.to(x.dtype), basis.terms(_columns(x), coeffs.size(0))):
        coeff = (coeff if group is None else coeff.index_select(0, group))[..., None]
        out = coeff * term.view_as(x) if out is None else torch.addcmul(out, coeff, term.view_as(x))
    return torch.zeros_like(x) if out is None else out


def _columns(x: Tensor) -> Tensor:  # [N, H, C] -> [N, H C]; autograd cannot map `flatten` over several gradients
    return x.reshape(x.size(0), x.size(1) * x.size(2))


def polynomial_attention(
    basis: Basis, coeffs: Tensor, group: Tensor | None, q: Tensor, k: Tensor, v: Tensor
) -> Tensor | None:
    r"""Sums :math:`\sum_{jr} q_{ir} M_{ij} k_{jr} v_j` under the mask :math:`M = \sum_k c_k P_k(A)`, in compiled code.

    Args:
        basis, coeffs, group: Those of `polynomial_product`.
        q, k, v: Queries and keys ``[N, H, R]`` and values ``[N, H, D]``, of the same dtype.

    Returns:
        Shape ``[N, H, D]``; :obj:`None` if the compiled code cannot serve.
    """
    if is_learned(basis.value) or torch.compiler.is_compiling():
        return None
    back = basis.T if torch.is_grad_enabled() else basis
    arrays = [x for pattern, value, _ in (basis, back) for x in (pattern.rowptr, pattern.col, _cast(value, q.dtype))]
    inputs = q, k, v, coeffs.to(q.dtype), *arrays, group, basis.chebyshev
    return None if _attention.refuses(*inputs) else _attention(*inputs)


def polynomial_blocks(
    basis: Basis, coeffs: Tensor, group: Tensor | None, layout: BlockLayout, dtype: torch.dtype
) -> list[Tensor] | None:
    r"""Blocks ``[g, H, n, n]`` of the transposed polynomial :math:`\sum_k c_k P_k(A)`, from terms that heads and layers
    share.

    Args:
        basis, coeffs, group: Those of `polynomial_product`.
        layout: Layout of the batch.
        dtype: That of the arithmetic.

    Returns:
        A block for each group of graphs; :obj:`None` if products of sparse matrices are faster, or the terms are too
        many numbers to be kept.
    """
    count = -(-coeffs.size(0) // _AT_ONCE) * _AT_ONCE  # layers with about the same degree find the same terms
    if not plans.once("shared", lambda: _is_dense(layout, count)):
        return None
    terms = _identity_terms(basis.value, basis.pattern, basis.chebyshev, layout, count, dtype)[: coeffs.size(0)]
    coeffs, heads = coeffs.to(dtype), coeffs.size(2)
    if group is None:
        flat = coeffs.squeeze(1).t() @ terms  # [H, S]
        parts = zip(flat.split(layout.lengths, 1), layout.groups.shapes)
        return [part.view(heads, g, n, n).transpose(0, 1) for part, (g, n) in parts]
    by_row = [rows.flatten() for rows in layout.groups.split(group)]  # entries other than 0 join nodes of one group
    return [
        (coeffs.permute(1, 2, 0).index_select(0, rows) @ part.unflatten(1, (-1, n)).transpose(0, 1))
        .unflatten(0, (g, n))
        .transpose(1, 2)
        for rows, part, (g, n) in zip(by_row, terms.split(layout.lengths, 1), layout.groups.shapes)
    ]


def _is_dense(layout: BlockLayout, count: int) -> bool:
    most = _MOST_DENSE.get(layout.device.type, 256)
    return 0 < layout.groups.width <= most and count * sum(layout.lengths) <= limits.slice_numbers


@once_per_batch
def _identity_terms(
    value: Tensor, pattern: Pattern, chebyshev: bool, layout: BlockLayout, count: int, dtype: torch.dtype
) -> Tensor:
    """Entries of the transposed terms, ``[count, S]``, computed once per batch unless those of ``A`` are learned."""
    found = []
    for block, inside in zip(fill_blocks(layout, pattern.col, pattern.row, value.to(dtype)), layout.groups.inside):
        eye = torch.eye(block.size(-1), dtype=dtype, device=block.device)
        first = eye.expand_as(block) if inside is None else eye * inside
        terms = _terms(block.matmul, (2 * block if chebyshev else block).matmul, chebyshev, first, count)
        found.append(torch.stack(list(terms)).flatten(1))
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _terms(
    multiply: Callable[[Tensor], Tensor], again: Callable[[Tensor], Tensor], chebyshev: bool, x: Tensor, count: int
) -> Iterator[Tensor]:
    """The first ``count`` terms, by a product with the matrix, and the product of later terms, which is twice that for
    Chebyshev polynomials.
    """
    before, now = x, x
    for k in range(count):
        if k > 0:
            after = multiply(now) if k == 1 else again(now)
            before, now = now, after - before if chebyshev and k > 1 else after
        yield now


@once_per_batch
def _is_symmetric(value: Tensor, pattern: Pattern) -> bool:
    other, order = pattern.transposed
    same = torch.equal(other.rowptr, pattern.rowptr) and torch.equal(other.col, pattern.col)
    return same and torch.allclose(value, value.index_select(0, order), rtol=8 * torch.finfo(value.dtype).eps, atol=0)


@once_per_batch
def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype, copy=True)


class _PolynomialAttention(SlicedAttention):
    library, name = "polynomial", "polynomial_attention"
    arrays = ("q", "k", "v", "coeffs", "rowptr", "col", "value", "back_rowptr", "back_col", "back_value", "group?")
    numbers = MappingProxyType({"chebyshev": bool})
    reads_numbers = MappingProxyType({"chebyshev": int, "parts": int})
    work_per_thread = 2**20

    def work(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
        return q.numel() * v.size(2) * rest[0].size(0)

    def twin(self, q: Tensor, k: Tensor, v: Tensor, coeffs: Tensor, *rest: Any) -> Tensor:
        rowptr, col, value, *_, group, chebyshev = rest
        basis = Basis(Pattern(None, col, q.size(0), q.size(0), rowptr=rowptr), value, chebyshev)
        return with_all_columns(partial(polynomial_product, basis, coeffs, group), q, k, v)

    def size(self, coeffs: Tensor) -> int:
        return coeffs.shape[:2].numel()

    def of_coeffs(self, by_head: Tensor, coeffs: Tensor) -> Tensor:
        found = by_head.unflatten(1, coeffs.shape[:2]).permute(1, 2, 0)
        return found if coeffs.size(2) > 1 else found.sum(2, keepdim=True)

    def examples(self) -> Iterator[tuple[Any, ...]]:
        for nodes, heads, features, own, groups in (
            (5, 1, 2, 1, 1),
            (4, 2, 3, 2, 2),
            (6, 1, 10, 1, 1),
            (70, 2, 17, 1, 3),
            (300, 1, 2, 1, 1),
            (0, 1, 2, 1, 1),
        ):
            q, k, v = torch.randn(3, nodes, heads, features, dtype=torch.float64)
            group = torch.arange(nodes) % groups if groups > 1 else None
            matrix = torch.randn(nodes, nodes, dtype=torch.float64) * (torch.rand(nodes, nodes) < 0.5)
            matrix = matrix.tril(2).triu(-70) if nodes > 70 else matrix  # several blocks of nodes
            if group is not None:
                matrix = matrix * (group[:, None] == group)
            row, col = matrix.nonzero().t()
            basis = Basis(Pattern(row, col, nodes, nodes), matrix[row, col] / 4, True)
            coeffs = torch.randn(4, groups, own, dtype=torch.float64)
            arrays = [x for b in (basis, basis.T) for x in (b.pattern.rowptr, b.pattern.col, b.value)]
            yield q, k, v[..., : features - 1], coeffs, *arrays, group, nodes not in (5, 70)


_attention = _PolynomialAttention()


class _Product(Bilinear):
    """The product. Its gradients are the product with the transposed matrix and the inner products `_Moments`."""

    @staticmethod
    def forward(coeffs: Tensor, x: Tensor, basis: Basis, group: Tensor | None) -> Tensor:
        return _sum(basis, coeffs, group, x)

    @staticmethod
    def gradients(
        grad: Tensor, coeffs: Tensor, x: Tensor, needed: tuple[bool, bool], basis: Basis, group: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_coeffs = _Moments.of(grad, x, basis, group, coeffs.shape).to(coeffs.dtype) if needed[0] else None
        return grad_coeffs, _Product.of(coeffs, grad, basis.T, group) if needed[1] else None


class _Moments(Bilinear):
    r"""Inner products :math:`\langle y, P_k(A)\, x \rangle` by group and head, with the shape of the coefficients."""

    @staticmethod
    def forward(y: Tensor, x: Tensor, basis: Basis, group: Tensor | None, shape: torch.Size) -> Tensor:
        out = []
        for term in basis.terms(_columns(x), shape[0]):
            by_row = (y * term.view_as(x)).sum(-1)  # [N, H]
            by_row = by_row if shape[2] > 1 else by_row.sum(1, keepdim=True)
            zeros = x.new_zeros(shape[1:])
            out.append(by_row.sum(0, keepdim=True) if group is None else zeros.index_add(0, group, by_row))
        return torch.stack(out) if out else x.new_zeros(shape)

    @staticmethod
    def gradients(
        grad: Tensor,
        y: Tensor,
        x: Tensor,
        needed: tuple[bool, bool],
        basis: Basis,
        group: Tensor | None,
        shape: torch.Size,
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_y = _Product.of(grad, x, basis, group) if needed[0] else None
        return grad_y, _Product.of(grad, y, basis.T, group) if needed[1] else None


def deconvolve(coeffs: Tensor, first: Tensor | None = None) -> Tensor:
    r"""The modulation function ``f`` whose convolution with itself gives the coefficients, :math:`f * f = \alpha`.

    With :math:`\Phi = \sum_k f_k W^k`, :math:`\Phi \Phi^\top = \sum_k \alpha_k W^k` for a symmetric matrix ``W``, up to
    the power ``K``. Of the two solutions, it is the one with :math:`f_0 > 0`. Given the ``first`` function :math:`f^1`
    of an asymmetric pair, it is the second one instead, :math:`f^1 * f^2 = \alpha`.

    Reference: Reid et al. 2024, arXiv:2410.03462, Remark 3.1 and Appendix D.

    Args:
        coeffs: :math:`\alpha`, shape ``[*, K + 1]``, with :math:`\alpha_0 > 0` unless there is a ``first``.
        first: :math:`f^1`, shape ``[*, K + 1]``, with :math:`f^1_0 \ne 0`.

    Returns:
        Shape ``[*, K + 1]``; differentiable.

    Raises:
        ValueError: If there are no coefficients, the first one is not positive, or ``first`` has another length or
            starts with 0.
    """
    if coeffs.dim() == 0 or coeffs.size(-1) == 0:
        raise ValueError(f"'coeffs' must be [*, K + 1] (got {list(coeffs.shape)})")
    if first is not None:
        if first.dim() == 0 or first.size(-1) != coeffs.size(-1) or not bool((first[..., 0] != 0).all()):
            raise ValueError(
                f"'first' must have {coeffs.size(-1)} numbers, not beginning with 0 (got {first.tolist()})"
            )
        second: list[Tensor] = []
        for k in range(coeffs.size(-1)):
            known = sum((first[..., k - p] * second[p] for p in range(k)), torch.zeros_like(first[..., 0]))
            second.append((coeffs[..., k] - known) / first[..., 0])
        return torch.stack(second, dim=-1)
    if not bool((coeffs[..., 0] > 0).all()):
        raise ValueError(f"the first coefficient must be positive (got {coeffs[..., 0].tolist()})")
    f = [coeffs[..., 0].sqrt()]
    for k in range(1, coeffs.size(-1)):
        known = sum((f[p] * f[k - p] for p in range(1, k)), torch.zeros_like(f[0]))
        f.append((coeffs[..., k] - known) / (2 * f[0]))
    return torch.stack(f, dim=-1)
