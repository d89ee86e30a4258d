"""The mask that is a power series of the adjacency matrix."""

import torch
from torch import Tensor

from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.operators.parameters import coefficient_heads
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.csr import check_edges, distinct_edges
from pyg_topomask.ops.memo import is_learned, once_per_batch
from pyg_topomask.ops.numerics import absolute, non_negative
from pyg_topomask.ops.products.polynomial import Basis, polynomial_attention, polynomial_blocks, polynomial_product
from pyg_topomask.ops.sparse import Pattern


class PowerSeriesOperator(MaskOperator):
    r"""Mask :math:`M = \sum_{k \le K} \alpha_k W^k`, the exact form of graph random features.

    Reference: Reid et al. 2024, arXiv:2410.03462, Section 2; Choromanski et al., ICML 2022, arXiv:2107.07999, Eq. 4.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(K E C)`, ``K`` sparse products.

    Args:
        edge_index: Edges, shape ``[2, E]``; the edge ``(i, j)`` is row ``i``, column ``j`` of :math:`W`.
        num_nodes: ``N``.
        coeffs: :math:`\alpha`, shape ``[K + 1]``, or ``[H, K + 1]`` for one mask per head.
        edge_weight: Entries of :math:`W`, shape ``[E]``, where equal edges add up; one per edge if :obj:`None`.

    Raises:
        ValueError: If the edges do not describe a graph of ``num_nodes`` nodes, or shapes disagree.
        TypeError: If edges are not integers, or coefficients or weights are not floating point.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, coeffs: Tensor, edge_weight: Tensor | None = None) -> None:
        self._set(Basis(*_matrix(edge_index, num_nodes, edge_weight, coeffs.dtype), chebyshev=False), coeffs)

    def _set(self, basis: Basis, coeffs: Tensor) -> None:
        self.basis, self.coeffs, self.numbers = basis, coeffs, (coeffs, basis.value)
        self.num_nodes, self.heads = basis.pattern.num_rows, coefficient_heads("coeffs", coeffs)
        self.dtype, self.device = coeffs.dtype, coeffs.device
        self.product_cost = 1.0 if is_learned(basis.value) else 0.1  # `contract` serves
        self.num_multiply_adds = self.num_nodes + (coeffs.size(-1) - 1) * (basis.pattern.nnz + self.num_nodes)

    def _like(self, basis: Basis, coeffs: Tensor) -> "PowerSeriesOperator":
        operator = PowerSeriesOperator.__new__(PowerSeriesOperator)
        operator._set(basis, coeffs)
        return operator

    @property
    def T(self) -> "PowerSeriesOperator":
        return self._like(self.basis.T, self.coeffs)

    @property
    def bound(self) -> "PowerSeriesOperator":
        if all(map(non_negative, self.numbers)):
            return self
        return self._like(self.basis._replace(value=_absolute(self.basis.value)), absolute(self.coeffs))

    @property
    def dense_blocks(self) -> DenseBlocks:
        return self._blocks_by_product(self.basis.pattern, self._shared_blocks, 0.25)

    @property
    def _by_head(self) -> Tensor:
        return self.coeffs.view(-1, self.coeffs.size(-1)).t()[:, None]  # [K + 1, 1, H or 1]

    def _shared_blocks(self, layout: BlockLayout) -> list[Tensor] | None:
        return polynomial_blocks(self.basis, self._by_head, None, layout, self.dtype)

    def contract(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        return polynomial_attention(self.basis, self._by_head, None, q, k, v)

    def times(self, other: MaskOperator) -> "PowerSeriesOperator | None":
        """The product of two series of one symmetric matrix, whose coefficients are their convolution, on CPU alone.

        Elsewhere, no compiled code serves, and the host would wait to know whether the matrix is symmetric.
        """
        if not isinstance(other, PowerSeriesOperator) or self.device.type != "cpu" or not self.basis.is_symmetric:
            return None
        if all(other.basis.value is not basis.value for basis in (self.basis, self.basis.T)):
            return None
        terms = self.coeffs[..., :, None] * other.coeffs[..., None, :]
        rows, columns = terms.shape[-2:]
        power = torch.arange(rows, device=self.device)[:, None] + torch.arange(columns, device=self.device)
        coeffs = terms.new_zeros(*terms.shape[:-2], rows + columns - 1)
        return self._like(self.basis, coeffs.index_add(-1, power.flatten(), terms.flatten(-2)))

    def _matmul(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.num_nodes, -1, x.size(-1))
        return polynomial_product(self.basis, self._by_head, None, rows).view_as(x)


_absolute = once_per_batch(absolute)
"""All layers find the same entries, and the same terms of them."""


@once_per_batch
def _matrix(edge_index: Tensor, num_nodes: int, weight: Tensor | None, dtype: torch.dtype) -> tuple[Pattern, Tensor]:
    """Pattern and entries of the distinct edges, which add up equal ones; once per batch unless weights are learned."""
    check_edges(edge_index, num_nodes, weight)
    pattern, entry = distinct_edges(edge_index, num_nodes)
    weight = entry.new_ones(entry.numel(), dtype=dtype) if weight is None else weight
    return pattern, weight.new_zeros(pattern.nnz).index_add(0, entry, weight)
