r"""Products with polynomials of a sparse matrix, :math:`\sum_k c_k P_k(A)\, x`, in powers or Chebyshev polynomials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.functions import Bilinear
from pyg_topomask.ops.memo import is_learned
from pyg_topomask.ops.sparse import Pattern, spmm


class Basis(NamedTuple):
    """Polynomials of the sparse matrix ``A`` with entries ``value [nnz]`` at ``pattern``.

    The polynomials are powers, :math:`P_{k + 1} = A P_k`, or Chebyshev polynomials,
    :math:`P_{k + 1} = 2 A P_k - P_{k - 1}`. The latter stay small if the spectrum of ``A`` is within [−1, 1].
    """

    pattern: Pattern
    value: Tensor
    chebyshev: bool

    @property
    def T(self) -> Basis:
        """The polynomials of the transposed matrix."""
        pattern, order = self.pattern.transposed
        return Basis(pattern, self.value.index_select(0, order), self.chebyshev)

    def terms(self, x: Tensor, count: int) -> Iterator[Tensor]:
        """The first ``count`` terms :math:`P_k(A)\\, x` for ``x [N, C]``, differentiable."""
        value, before, now = self.value.to(x.dtype), x, x
        for k in range(count):
            if k == 1:
                before, now = now, spmm(self.pattern, value, now)
                value = 2 * value if self.chebyshev else value
            elif k > 1:
                after = spmm(self.pattern, value, now)
                before, now = now, after - before if self.chebyshev else after
            yield now


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
    return _Product.apply(coeffs, x, basis, group)


def _sum(basis: Basis, coeffs: Tensor, group: Tensor | None, x: Tensor) -> Tensor:
    out: Tensor | None = None
    for coeff, term in zip(coeffs.to(x.dtype), basis.terms(x.flatten(1), coeffs.size(0))):
        coeff = (coeff if group is None else coeff.index_select(0, group))[..., None]
        out = coeff * term.view_as(x) if out is None else torch.addcmul(out, coeff, term.view_as(x))
    return torch.zeros_like(x) if out is None else out


class _Product(Bilinear):
    """The product. Its gradients are the product with the transposed matrix and the inner products `_Moments`."""

    @staticmethod
    def forward(coeffs: Tensor, x: Tensor, basis: Basis, group: Tensor | None) -> Tensor:
        return _sum(basis, coeffs, group, x)

    @staticmethod
    def gradients(
        grad: Tensor, coeffs: Tensor, x: Tensor, needed: tuple[bool, bool], basis: Basis, group: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_coeffs = _Moments.apply(grad, x, basis, group, coeffs.shape).to(coeffs.dtype) if needed[0] else None
        return grad_coeffs, _Product.apply(coeffs, grad, basis.T, group) if needed[1] else None


class _Moments(Bilinear):
    r"""Inner products :math:`\langle y, P_k(A)\, x \rangle` by group and head, with the shape of the coefficients."""

    @staticmethod
    def forward(y: Tensor, x: Tensor, basis: Basis, group: Tensor | None, shape: torch.Size) -> Tensor:
        out = x.new_zeros(shape)
        for k, term in enumerate(basis.terms(x.flatten(1), shape[0])):
            by_row = (y * term.view_as(x)).sum(-1)  # [N, H]
            by_row = by_row if shape[2] > 1 else by_row.sum(1, keepdim=True)
            if group is None:
                out[k] = by_row.sum(0, keepdim=True)
            else:
                out[k].index_add_(0, group, by_row)
        return out

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
        grad_y = _Product.apply(grad, x, basis, group) if needed[0] else None
        return grad_y, _Product.apply(grad, y, basis.T, group) if needed[1] else None


def deconvolve(coeffs: Tensor, first: Tensor | None = None) -> Tensor:
    r"""The modulation function ``f`` whose convolution with itself gives the coefficients, :math:`f * f = \alpha`.

    With :math:`\Phi = \sum_k f_k W^k`, :math:`\Phi \Phi^\top = \sum_k \alpha_k W^k` for a symmetric matrix ``W``, up to
    the power ``K``; of the two solutions the one with :math:`f_0 > 0`. Given the ``first`` function :math:`f^1` of an
    asymmetric pair, it is the second one instead, :math:`f^1 * f^2 = \alpha`; :math:`f^1 = 1, 0, \ldots` gives
    :math:`\alpha` itself.

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
        return _divide(coeffs, first)
    if not bool((coeffs[..., 0] > 0).all()):
        raise ValueError(f"the first coefficient must be positive (got {coeffs[..., 0].tolist()})")
    f = [coeffs[..., 0].sqrt()]
    for k in range(1, coeffs.size(-1)):
        known = sum((f[p] * f[k - p] for p in range(1, k)), torch.zeros_like(f[0]))
        f.append((coeffs[..., k] - known) / (2 * f[0]))
    return torch.stack(f, dim=-1)


def _divide(coeffs: Tensor, first: Tensor) -> Tensor:
    """The series ``[*, K + 1]`` whose product with ``first`` is ``coeffs``, up to the power ``K``."""
    if first.dim() == 0 or first.size(-1) != coeffs.size(-1) or not bool((first[..., 0] != 0).all()):
        raise ValueError(f"'first' must hold {coeffs.size(-1)} numbers, the first not 0 (got {first.tolist()})")
    f: list[Tensor] = []
    for k in range(coeffs.size(-1)):
        known = sum((first[..., k - p] * f[p] for p in range(k)), torch.zeros_like(first[..., 0]))
        f.append((coeffs[..., k] - known) / first[..., 0])
    return torch.stack(f, dim=-1)
