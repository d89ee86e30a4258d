r"""Products with Toeplitz masks of grids with any number of axes, by the fast Fourier transform.

Nodes of a grid ``(n_1, …, n_d)`` are in row-major order, and :math:`M_{pq} = w_{p - q + n - 1}` for the grid positions
``p`` and ``q``. The matrix is ``d``-level block-Toeplitz, and its product is a convolution.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.2, Definition 3.2 and Lemma 3.3.
"""

from collections.abc import Iterator, Sequence
from math import log2, prod

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from pyg_topomask.limits import limits
from pyg_topomask.ops.functions import Bilinear
from pyg_topomask.ops.memo import once_per_setting
from pyg_topomask.ops.native.operators import for_each


def toeplitz_product(weight: Tensor, x: Tensor) -> Tensor:
    r"""Product :math:`y_p = \sum_q w_{p - q + n - 1} x_q` by FFTs of at least ``2 n_i - 1`` points along each axis.

    Args:
        weight: Shape ``[H, 2 n_1 - 1, …, 2 n_d - 1]``.
        x: Shape ``[H, C, n_1, …, n_d]``, with the dtype of ``weight``.

    Returns:
        Shape ``[H, C, n_1, …, n_d]``, differentiable in both arguments. The backward pass computes the transforms
        again.
    """
    return _Convolution.of(weight, x)


def toeplitz_matrix(weight: Tensor, grid_shape: Sequence[int]) -> Tensor:
    """The mask as a matrix ``[H, N, N]``, from ``weight [H, 2 n_1 - 1, …]``; differentiable."""
    size = prod(grid_shape)
    offsets = _offsets(tuple(grid_shape), weight.device).expand(weight.size(0), -1)
    return weight.flatten(1).gather(1, offsets).view(-1, size, size)


@once_per_setting(8)
def _offsets(grid_shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Index of the weight of each entry ``p - q + n - 1``, by rows, shape ``[N²]``."""
    offset = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for size in grid_shape:
        node = torch.arange(size, device=device)
        axis = node[:, None] - node + size - 1
        offset = (offset[:, None, :, None] * (2 * size - 1) + axis[None, :, None, :]).flatten(2, 3).flatten(0, 1)
    return offset.flatten()


@once_per_setting(64)
def toeplitz_multiply_adds(grid_shape: tuple[int, ...]) -> int:
    """Multiply-adds of the product with one column, without those of the transform of the weight."""
    *sizes, last = _sizes(grid_shape)
    sizes.append(last // 2)  # a spectrum of real numbers has half as many complex ones
    count, rows = 0.0, prod(grid_shape)
    for axis in reversed(range(len(sizes))):  # an axis is padded just before it is transformed
        rows = rows // grid_shape[axis] * sizes[axis]
        count += 2.5 * rows * log2(max(sizes[axis], 2))
    return int(2 * count + 4 * rows)


def _sizes(grid_shape: Sequence[int]) -> list[int]:
    """Lengths of the transforms along each axis. They have small prime factors, and are fast."""
    return [_fast_length(int(size)) for size in grid_shape]


@torch.compiler.assume_constant_result
def _fast_length(size: int) -> int:
    return int(next_fast_len(2 * size - 1, real=True))


class _Convolution(Bilinear):
    """Convolution. Its gradients are a convolution and a correlation, so all derivatives are defined."""

    @staticmethod
    def forward(weight: Tensor, x: Tensor) -> Tensor:
        return _convolution(weight, x)

    @staticmethod
    def gradients(
        grad: Tensor, weight: Tensor, x: Tensor, needed: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_weight = _Correlation.of(grad, x) if needed[0] else None
        return grad_weight, _Convolution.of(_reverse(weight), grad) if needed[1] else None


class _Correlation(Bilinear):
    """Sums ``[H, 2 n_1 - 1, …]`` of ``y_p x_q`` over all channels and all positions of one difference ``p - q``."""

    @staticmethod
    def forward(y: Tensor, x: Tensor) -> Tensor:
        return _correlation(y, x)

    @staticmethod
    def gradients(grad: Tensor, y: Tensor, x: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
        grad_y = _Convolution.of(grad, x) if needed[0] else None
        return grad_y, _Convolution.of(_reverse(grad), y) if needed[1] else None


@for_each
def _convolution(weight: Tensor, x: Tensor) -> Tensor:
    sizes, out = _sizes(x.shape[2:]), torch.empty_like(x, memory_format=torch.contiguous_format)
    wanted, kernel = [(size - 1, size) for size in x.shape[2:]], _transform(weight, sizes)[:, None]
    for some in _slices(x, sizes):
        out[:, some] = _inverse(_transform(x[:, some], sizes).mul_(kernel), sizes, wanted)
    return out


@for_each
def _correlation(y: Tensor, x: Tensor) -> Tensor:
    sizes, axes = _sizes(x.shape[2:]), list(range(2, x.dim()))
    total: Tensor | float = 0.0
    for some in _slices(x, sizes):
        total = total + (_transform(y[:, some], sizes) * _transform(x[:, some].flip(axes), sizes)).sum(1)
    wanted = [(0, 2 * size - 1) for size in x.shape[2:]]
    if isinstance(total, float):  # there are no channels
        return x.new_zeros(x.size(0), *(number for _, number in wanted))
    return _inverse(total, sizes, wanted)


def _reverse(weight: Tensor) -> Tensor:
    """The weight of the transposed mask."""
    return weight.flip(list(range(1, weight.dim())))


def _slices(x: Tensor, sizes: Sequence[int]) -> Iterator[slice]:
    """Channels that are transformed together, at least one: their numbers stay in the cache."""
    step = max(1, limits.slice_numbers // 64 // (prod(sizes) * max(x.size(0), 1)))
    return (slice(first, first + step) for first in range(0, x.size(1), step))


def _transform(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Spectrum of real numbers over the last axes; each axis is padded with zeros only when it is transformed."""
    out = torch.fft.rfft(x, sizes[-1])
    for axis in range(2, len(sizes) + 1):
        out = torch.fft.fft(out, sizes[-axis], dim=-axis)
    return out


def _inverse(spectrum: Tensor, sizes: Sequence[int], wanted: Sequence[tuple[int, int]]) -> Tensor:
    """Real numbers of a spectrum at the wanted positions; each axis is cut right after it is transformed.

    Args:
        spectrum: As `_transform` returns it.
        sizes: Lengths of the transforms.
        wanted: First position and number of positions of each axis.
    """
    for axis in range(len(sizes), 1, -1):
        spectrum = torch.fft.ifft(spectrum, dim=-axis).narrow(-axis, *wanted[-axis])
    return torch.fft.irfft(spectrum, sizes[-1]).narrow(-1, *wanted[-1])
