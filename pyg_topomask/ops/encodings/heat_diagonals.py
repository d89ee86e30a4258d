r"""Diagonals of heat kernels, computed exactly by blocks of columns or estimated by random signs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyg_topomask.ops.csr import CSR
from pyg_topomask.ops.encodings.diagonals import Diagonals, Sums, check_method, parts, random_signs, unit_columns
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, strengths, to_scipy, undirected, with_diagonal
from pyg_topomask.ops.products.chebyshev import heat_series
from pyg_topomask.ops.sparse import Pattern, spmm

_MAX_FLOAT32_DIFFUSION = 64.0
"""Largest such product for float32, which rounds eigenvalues to 6e-8 of the radius: an error of 4e-6 at most."""


def heat_diagonals(
    batch: GraphBatch, times: Sequence[float], *, method: str = "auto", tol: float = 0.05, seed: int = 0
) -> Diagonals:
    r"""Diagonals of :math:`e^{-tL}` without the constant part: :math:`\sum_{\lambda_k > 0} e^{-t\lambda_k} u_k(i)^2`.

    :math:`L = D - A` of the larger weight of both directions, without self-loops. The omitted part is 1 / (number of
    nodes of the component), the limit for :math:`t \to \infty`.

    Exact values use the diagonals of Chebyshev polynomials in :math:`L`, computed from half of their degree
    (:math:`T_{a+b} = 2 T_a T_b - T_{a-b}`); they serve all times. Estimates are the mean of :math:`(e^{-tL/2} z)_i^2`
    over random signs z from which the mean of each component is subtracted.

    Args:
        batch: Graphs.
        times: Diffusion times, ≥ 0.
        method: ``"exact"``, ``"estimate"``, or ``"auto"``: exact for up to 10,000 nodes.
        tol: Standard error of an estimate relative to the value itself; ``2 / tol²`` random vectors are drawn.
        seed: Seed of the random vectors.

    Cost: exact, :math:`O(E \max_g N_g K)` operations with :math:`K = O(\sqrt{t \max_i D_{ii}} + t \max_i D_{ii})`;
    estimated, :math:`O((E + N |times|) K / tol^2)`.
    Rounding of float32 would grow with :math:`t \max_i D_{ii}`, so float64 is used if it exceeds 64. Exact values agree
    with float64 to 5e-6.

    Raises:
        ValueError: If a time multiplied by a node's strength (sum of its edge weights) is so large that the
            series would have more than 32,768 terms.
    """
    check_method(method, tol)
    batch = undirected(batch)
    value = torch.zeros(batch.num_nodes, len(times), dtype=torch.float64)
    error = torch.zeros_like(value)
    for rows, part, ptr, width, exact in parts(batch, method):
        num_parts, component = connected_components(to_scipy(part), directed=False)
        size = np.bincount(component, minlength=num_parts)
        if exact:
            found = _exact_heat(part, ptr, width, times) - torch.from_numpy(1.0 / size[component])[:, None]
            value[rows] = found.clamp_(min=0)
        else:
            groups = torch.from_numpy(component).long(), torch.from_numpy(size)
            value[rows], error[rows] = _estimated_heat(part, groups, times, tol, seed)
    return Diagonals(value.float(), error.float())


def _shifted_laplacian(csr: CSR, times: Sequence[float]) -> tuple[tuple[Pattern, Tensor], float]:
    """``L / r - 1``, whose spectrum lies in [-1, 1], and the radius ``r``, the largest strength.

    The matrix is float32 if its rounding matters little at all ``times``, otherwise float64.
    """
    strength = strengths(csr)
    radius = float(strength.max()) if csr.num_nodes else 0.0
    radius = radius if radius > 0 else 1.0
    matrix = with_diagonal(csr._replace(weight=-csr.weight / radius), strength / radius - 1)
    dtype = torch.float32 if max(times) * radius <= _MAX_FLOAT32_DIFFUSION else torch.float64
    return (matrix.pattern, matrix.weight.to(dtype)), radius


def _heat_coefficients(times: Sequence[float], radius: float, tol: float) -> Tensor:
    """Chebyshev coefficients of ``exp(-t r (1 + x))`` on [-1, 1] for each time, shape ``[times, K + 1]``."""
    time, tols = torch.tensor(times, dtype=torch.float64), torch.full((1, len(times)), 2 * tol, dtype=torch.float64)
    low, high = torch.tensor([[0.0], [2 * radius]], dtype=torch.float64)
    return heat_series(time, low, high, tols)[:, 0].t()


def _exact_heat(csr: CSR, ptr: Sequence[int], width: int, times: Sequence[float]) -> Tensor:
    matrix, radius = _shifted_laplacian(csr, times)
    coeffs = _heat_coefficients(times, radius, 1e-7)
    last = coeffs.size(1) - 1
    moments = torch.zeros(ptr[-1], last + 1, dtype=torch.float64)
    for block in unit_columns(ptr, width):
        low = block.to(matrix[1].dtype)
        high = spmm(*matrix, low)
        moments[:, 0] += low.sum(dim=1)
        moments[:, 1] += (low * high).sum(dim=1)
        for k in range(2, last + 1):
            if k % 2 == 0:
                moments[:, k] += 2 * high.square().sum(dim=1)
            else:
                low, high = high, 2 * spmm(*matrix, high) - low
                moments[:, k] += 2 * (low * high).sum(dim=1)
    moments[:, 2::2] -= moments[:, :1]  # T_2a = 2 T_a² - T_0, T_2a+1 = 2 T_a T_a+1 - T_1
    moments[:, 3::2] -= moments[:, 1:2]
    return moments @ coeffs.t()


def _estimated_heat(
    csr: CSR, groups: tuple[Tensor, Tensor], times: Sequence[float], tol: float, seed: int
) -> tuple[Tensor, Tensor]:
    component, size = groups
    matrix, radius = _shifted_laplacian(csr, times)
    coeffs = _heat_coefficients([time / 2 for time in times], radius, 1e-6).to(matrix[1].dtype)
    sums = Sums(component.numel(), len(times), exact=False)
    for signs in random_signs(component.numel(), tol, seed):
        sums.count += signs.size(1)
        signs = signs.to(matrix[1].dtype)
        total = signs.new_zeros(size.numel(), signs.size(1)).index_add_(0, component, signs)
        low = signs - (total / size[:, None]).index_select(0, component)
        high = spmm(*matrix, low)
        diffused = [row[0] * low + row[1] * high for row in coeffs]
        for k in range(2, coeffs.size(1)):
            low, high = high, 2 * spmm(*matrix, high) - low
            for row, state in zip(coeffs, diffused):
                if abs(float(row[k])) > 1e-9:
                    state.add_(high, alpha=float(row[k]))
        for position, state in enumerate(diffused):
            sums.add(position, state.square())
    return sums.result()
