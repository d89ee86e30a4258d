r"""Heat kernels of grids: Kronecker products of the kernels of their paths, applied axis by axis.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.1. A hypercube is a grid of paths of two nodes, of
which the paper gives the closed form.
"""

from collections.abc import Sequence
from functools import reduce
from math import log2, pi, prod

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_setting

# Largest path whose kernel is multiplied as a matrix, and most nodes of short axes that one matrix serves. Products of
# matrices use the hardware better than transforms, and than one product for each axis, although these take fewer
# multiply-adds.
_MOST_DENSE = 256
_MOST_JOINED = 32

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
    for axes in _joined_axes(grid_shape):
        size = prod(axes)
        after //= size
        x = x.reshape(x.size(0), before, size, after)
        x = _times(grid_kernel(time, axes).to(x.dtype), x) if size <= _MOST_DENSE else _path_heat(time, x)
        before *= size
    return x.reshape(shape)


def grid_kernel(time: Tensor, grid_shape: Sequence[int]) -> Tensor:
    """Heat kernels of a grid in float64, shape ``[H, N, N]``, for times ``[H]``."""
    paths = {size: _path_kernel(time, size) for size in set(grid_shape)}
    return reduce(_kronecker, (paths[size] for size in grid_shape))


def grid_multiply_adds(grid_shape: Sequence[int]) -> int:
    """Multiply-adds of `grid_heat` for one column."""
    sizes = [prod(axes) for axes in _joined_axes(grid_shape)]
    per_node = [n if n <= _MOST_DENSE else 2 * (2.5 * log2(2 * n) + 1) for n in sizes]
    return int(prod(grid_shape) * sum(per_node))


def _joined_axes(grid_shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Consecutive axes that one matrix serves, or a single longer one."""
    joined: list[tuple[int, ...]] = []
    for size in grid_shape:
        if joined and prod(joined[-1]) * size <= _MOST_JOINED:
            joined[-1] += (size,)
        else:
            joined.append((size,))
    return joined


def _path_kernel(time: Tensor, num_nodes: int) -> Tensor:
    r"""Heat kernels of a path in float64, shape ``[H, n, n]``, for times ``[H]``.

    The discrete cosine transform (DCT-II) diagonalises the Laplacian, whose eigenvalues are
    :math:`2 - 2 \cos(\pi k / n)` for ``k < n``.
    """
    if num_nodes == 2:  # without the difference of two numbers that are nearly equal for short times
        moved = -torch.expm1(-2 * time.double()) / 2
        return torch.stack([1 - moved, moved, moved, 1 - moved], dim=-1).view(-1, 2, 2)
    basis = _cosines(num_nodes, time.device)
    return (basis * _decay(time, num_nodes)[:, None, :num_nodes]) @ basis.t()


def _path_heat(time: Tensor, x: Tensor) -> Tensor:
    """Product of a long path's heat kernel with ``x [H, B, n, C]`` along the third axis.

    On the cycle of a path and its mirror image, Fourier transforms diagonalise the kernel.
    """
    num_nodes = x.size(2)
    decay = _decay(time, num_nodes).to(x.dtype)[:, None, :, None]

    def transformed(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(torch.cat([x, x.flip(2)], dim=2), dim=2)
        return torch.fft.irfft(spectrum * decay, 2 * num_nodes, dim=2)[:, :, :num_nodes]

    num_rows = max(1, _SLICE // min(x.size(3), _SLICE))
    rows = [
        torch.cat([transformed(part) for part in row.split(_SLICE, dim=3)], dim=3) for row in x.split(num_rows, dim=1)
    ]
    return torch.cat(rows, dim=1)


def _kronecker(left: Tensor, right: Tensor) -> Tensor:
    """Kronecker products of matrices ``[H, n, n]`` and ``[H, m, m]``: shape ``[H, n m, n m]``."""
    product = left[:, :, None, :, None] * right[:, None, :, None, :]  # [H, n, m, n, m]
    return product.flatten(3, 4).flatten(1, 2)


def _times(kernel: Tensor, x: Tensor) -> Tensor:
    """Product of kernels ``[H, n, n]``, or of one for all heads, with ``x [H, B, n, C]``, without copying them ``B``
    times.
    """
    return kernel[0] @ x if kernel.size(0) == 1 else torch.stack([one @ head for one, head in zip(kernel, x)])


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
