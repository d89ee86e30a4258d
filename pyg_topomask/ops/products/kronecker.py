r"""Heat kernels of grids and hypercubes: Kronecker products of small kernels, applied axis by axis.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.1. The paper's closed form, :math:`\tanh(\lambda)`
to the power of the distance, is valid for hypercubes. A grid's kernel is the Kronecker product of the kernels of its
paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, pi, prod

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_setting

# Largest path whose kernel is multiplied as a matrix, and number of hypercube axes that one matrix handles. Matrix
# products use the hardware better than transforms and butterflies, although these need fewer multiply-adds.
_MOST_DENSE = 256
_CUBE_AXES = 5

# Columns that are transformed at a time, chosen so that the signal and the spectrum both stay in the cache.
_SLICE = 32


def grid_heat(time: Tensor, x: Tensor, grid_shape: Sequence[int]) -> Tensor:
    r"""Product with the heat kernel :math:`\exp(-\lambda L)` of a grid.

    Args:
        time: Time :math:`\lambda` of each head, shape ``[H]``, or ``[1]`` for all heads.
        x: Shape ``[H, G, N, C]``, the ``N = n_1 ⋯ n_d`` nodes in row-major order.
        grid_shape: ``(n_1, …, n_d)``.

    Returns:
        Same shape as ``x``, differentiable in ``time`` and ``x``.
    """
    shape, before, after = x.shape, x.size(1), prod(x.shape[2:])
    for size in grid_shape:
        after //= size
        x = _path_heat(time, x.reshape(x.size(0), before, size, after))
        before *= size
    return x.reshape(shape)


def hypercube_heat(time: Tensor, x: Tensor, dim: int) -> Tensor:
    r"""Product with the heat kernel :math:`\exp(-\lambda L)` of a hypercube, whose ``2^dim`` nodes are in binary order.

    The arguments are those of `grid_heat`.
    """
    shape, before, after = x.shape, x.size(1), prod(x.shape[2:])
    for axis in range(0, dim, _CUBE_AXES):
        kernel = hypercube_kernel(time, min(_CUBE_AXES, dim - axis)).to(x.dtype)
        after //= kernel.size(1)
        x = _times(kernel, x.reshape(x.size(0), before, kernel.size(1), after))
        before *= kernel.size(1)
    return x.reshape(shape)


def path_kernel(time: Tensor, num_nodes: int) -> Tensor:
    r"""Heat kernels of a path in float64, shape ``[H, n, n]``, for times ``[H]``.

    The discrete cosine transform (DCT-II) diagonalises the Laplacian, whose eigenvalues are
    :math:`2 - 2 \cos(\pi k / n)` for ``k < n``.
    """
    basis = _cosines(num_nodes, time.device)
    return (basis * _decay(time, num_nodes)[:, None, :num_nodes]) @ basis.t()


def hypercube_kernel(time: Tensor, dim: int) -> Tensor:
    r"""Heat kernels of a hypercube in float64, shape ``[H, 2^dim, 2^dim]``, for times ``[H]``.

    The entries are :math:`((1 + e^{-2 \lambda}) / 2)^{dim - h} ((1 - e^{-2 \lambda}) / 2)^h` at Hamming distance ``h``,
    which is the paper's form without the division by zero at :math:`\lambda = 0`.
    """
    double, bits = -2 * time.double()[:, None], torch.arange(dim + 1, device=time.device)
    same, other = (1 + torch.exp(double)) / 2, -torch.expm1(double) / 2
    entries = same ** bits.flip(0) * other**bits  # [H, dim + 1]
    return entries.index_select(1, _hamming(dim, time.device)).view(-1, 2**dim, 2**dim)


def kronecker(left: Tensor, right: Tensor) -> Tensor:
    """Kronecker products of matrices ``[H, n, n]`` and ``[H, m, m]``: shape ``[H, n m, n m]``."""
    product = left[:, :, None, :, None] * right[:, None, :, None, :]  # [H, n, m, n, m]
    return product.flatten(3, 4).flatten(1, 2)


def grid_multiply_adds(grid_shape: Sequence[int]) -> int:
    """Multiply-adds of `grid_heat` for one column."""
    per_node = [n if n <= _MOST_DENSE else 2 * (2.5 * log2(2 * n) + 1) for n in grid_shape]
    return int(prod(grid_shape) * sum(per_node))


def hypercube_multiply_adds(dim: int) -> int:
    """Multiply-adds of `hypercube_heat` for one column."""
    return 2**dim * sum(2 ** min(_CUBE_AXES, dim - axis) for axis in range(0, dim, _CUBE_AXES))


def _path_heat(time: Tensor, x: Tensor) -> Tensor:
    """Product of a path's heat kernel with ``x [H, B, n, C]`` along the third axis.

    For a long path, cosine transforms (DCT-II and its inverse) diagonalise the kernel. With the even nodes first and
    the odd ones backwards after them, a cosine transform is a Fourier transform of the same length: the coefficients
    ``k`` and ``n - k`` are real and imaginary part of its term ``k``, turned by ``-pi k / 2n`` (Makhoul, 1980).
    """
    num_nodes = x.size(2)
    if num_nodes <= _MOST_DENSE:
        return _times(path_kernel(time, num_nodes).to(x.dtype), x)
    order = torch.cat([torch.arange(0, num_nodes, 2), torch.arange(1, num_nodes, 2).flip(0)]).to(x.device)
    inverse = order.argsort()
    half = torch.arange(num_nodes // 2 + 1, device=x.device)
    angle = half.double() * (-pi / (2 * num_nodes))
    turn = torch.polar(torch.ones_like(angle), angle).to(x.dtype.to_complex())[:, None]
    decay = _decay(time, num_nodes)
    decay = torch.stack([decay[:, half], decay[:, num_nodes - half]], dim=-1).to(x.dtype)[:, None, :, None]

    def transformed(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x.index_select(2, order), dim=2) * turn
        spectrum = torch.view_as_complex(torch.view_as_real(spectrum) * decay) * turn.conj()
        return torch.fft.irfft(spectrum, num_nodes, dim=2).index_select(2, inverse)

    num_rows = max(1, _SLICE // min(x.size(3), _SLICE))
    rows = [
        torch.cat([transformed(part) for part in row.split(_SLICE, dim=3)], dim=3) for row in x.split(num_rows, dim=1)
    ]
    return torch.cat(rows, dim=1)


def _times(kernel: Tensor, x: Tensor) -> Tensor:
    """Product of kernels ``[H, n, n]``, or of one for all heads, with ``x [H, B, n, C]``, without copying them ``B``
    times.
    """
    return kernel[0] @ x if kernel.size(0) == 1 else torch.stack([one @ head for one, head in zip(kernel, x)])


@once_per_setting(8)
def _hamming(dim: int, device: torch.device) -> Tensor:
    """Hamming distance of each pair of nodes of a hypercube, by rows, shape ``[4^dim]``, int64."""
    node = torch.arange(2**dim, device=device)
    differ = node[:, None] ^ node
    return sum((differ >> bit & 1 for bit in range(dim)), torch.zeros_like(differ)).flatten()


@once_per_setting(32)
def _cosines(num_nodes: int, device: torch.device) -> Tensor:
    """Orthonormal eigenvectors of a path's Laplacian, one per column: ``[n, n]``, float64."""
    index = torch.arange(num_nodes, dtype=torch.float64, device=device)
    basis = torch.cos((index[:, None] + 0.5) * index * (pi / num_nodes))
    return basis / basis.norm(dim=0)


@once_per_setting(32)
def _eigenvalues(num_nodes: int, device: torch.device) -> Tensor:
    """Eigenvalues ``[n + 1]`` of a path's Laplacian and of the highest cosine of the mirrored path, float64."""
    index = torch.arange(num_nodes + 1, dtype=torch.float64, device=device)
    return 2 - 2 * torch.cos(index * (pi / num_nodes))


def _decay(time: Tensor, num_nodes: int) -> Tensor:
    """Decay of each cosine after the given time, ``[H, n + 1]``, float64."""
    return torch.exp(-time.double()[:, None] * _eigenvalues(num_nodes, time.device))
