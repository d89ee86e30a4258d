r"""Diagonals of heat kernels, computed by blocks of columns."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyg_topomask.ops.csr import CSR
from pyg_topomask.ops.encodings.diagonals import parts, unit_columns
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, strengths, to_scipy, undirected, with_diagonal
from pyg_topomask.ops.products.chebyshev import heat_series
from pyg_topomask.ops.sparse import Pattern, spmm

# Largest product of a time and a strength for float32, which rounds eigenvalues to 6e-8 of the radius: an error of 4e-6
# at most.
_MAX_FLOAT32_DIFFUSION = 64.0


def heat_diagonals(batch: GraphBatch, times: Sequence[float]) -> Tensor:
    r"""Diagonals of :math:`e^{-tL}` without the constant part: :math:`\sum_{\lambda_k > 0} e^{-t\lambda_k} u_k(i)^2`.

    :math:`L = D - A` of the larger weight of both directions, without self-loops. The omitted part is 1 / (number of
    nodes of the component), the limit for :math:`t \to \infty`.

    The diagonals of Chebyshev polynomials in :math:`L`, computed from half of their degree
    (:math:`T_{a+b} = 2 T_a T_b - T_{a-b}`), serve all times.

    Args:
        batch: Graphs.
        times: Diffusion times, ≥ 0.

    Returns:
        The diagonals, ``[N, T]``, float32.

    Cost: :math:`O(E \max_g N_g K)` operations with :math:`K = O(\sqrt{t \max_i D_{ii}} + t \max_i D_{ii})`.
    Rounding of float32 would grow with :math:`t \max_i D_{ii}`, so float64 is used if it exceeds 64. The
    values agree with float64 to 5e-6.

    Raises:
        ValueError: If a time multiplied by a node's strength (sum of its edge weights) is so large that the
            series would have more than 32,768 terms.
    """
    batch = undirected(batch)
    value = torch.zeros(batch.num_nodes, len(times), dtype=torch.float64)
    for rows, part, ptr, width in parts(batch):
        num_parts, component = connected_components(to_scipy(part), directed=False)
        constant = torch.from_numpy(1.0 / np.bincount(component, minlength=num_parts)[component])
        value[rows] = (_heat(part, ptr, width, times) - constant[:, None]).clamp_(min=0)
    return value.float()


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


def _heat(csr: CSR, ptr: Sequence[int], width: int, times: Sequence[float]) -> Tensor:
    matrix, radius = _shifted_laplacian(csr, times)
    low, high, tol = np.array([[0.0], [2 * radius], [2e-7]])
    series = heat_series(low, high, tol, max(times), torch.device("cpu"))
    coeffs = series.coeffs(torch.tensor(times, dtype=torch.float64))[:, 0]  # [K + 1, times]
    last = coeffs.size(0) - 1
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
    return moments @ coeffs
