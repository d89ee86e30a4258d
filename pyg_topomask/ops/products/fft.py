r"""Products with Toeplitz masks of grids with any number of axes, by the fast Fourier transform.

Nodes of a grid ``(n_1, …, n_d)`` are in row-major order, and :math:`M_{pq} = w_{p - q + n - 1}` for the grid positions
``p`` and ``q``. The matrix is ``d``-level block-Toeplitz, and its product is a convolution.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.2, Definition 3.2 and Lemma 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import log2, prod

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from pyg_topomask.limits import limits
from pyg_topomask.ops.functions import Bilinear
from pyg_topomask.ops.memo import once_per_setting
from pyg_topomask.ops.products.spectrum import signal, spectrum, unwrap, wrap

# The numbers of a transform collide in the cache if their distance in memory, which is the length of another axis, is a
# multiple of a high power of two. So an axis is lengthened until the largest power of two that divides its length,
# times the length of the transform, is at most this number: the first for transforms of columns, the second for those
# of rows. On CPU, transforms of 1,024 columns of 2,048 numbers take 4 times as long as those of 1,080 columns.
_MOST_COLLIDING = 2**18, 2**20


def toeplitz_product(weight: Tensor, x: Tensor) -> Tensor:
    r"""Product :math:`y_p = \sum_q w_{p - q + n - 1} x_q` by FFTs of at least ``2 n_i - 1`` points along each axis.

    Args:
        weight: Shape ``[H, 2 n_1 - 1, …, 2 n_d - 1]``.
        x: Shape ``[H, C, n_1, …, n_d]``, with the dtype of ``weight``.

    Returns:
        Shape ``[H, C, n_1, …, n_d]``, differentiable in both arguments. The backward pass computes the transforms
        again.
    """
    return _Convolution.apply(weight, x)


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


@lru_cache(maxsize=64)
def toeplitz_multiply_adds(grid_shape: tuple[int, ...]) -> int:
    """Multiply-adds of the product with one column, without those of the transform of the weight."""
    sizes, count, rows = _transform_sizes(grid_shape), 0.0, prod(grid_shape)
    for axis in reversed(range(len(sizes))):  # an axis is padded just before it is transformed
        rows = rows // grid_shape[axis] * sizes[axis]
        count += 2.5 * rows * log2(max(sizes[axis], 2))
    return int(2 * count + 4 * rows)


def _transform_sizes(grid_shape: Sequence[int]) -> list[int]:
    """Complex numbers along each axis: the last one needs no padding, see `spectrum`."""
    sizes = [next_fast_len(2 * size - 1, real=True) for size in grid_shape[:-1]]
    last = next_fast_len(grid_shape[-1], real=True)
    if sizes:
        last = _without_collisions(last, sizes[-1], _MOST_COLLIDING[0])
        sizes[-1] = _without_collisions(sizes[-1], last, _MOST_COLLIDING[1])
    return [*sizes, last]


def _without_collisions(size: int, length: int, most: int) -> int:
    """Smallest fast size from ``size`` on at which ``length`` numbers at this distance do not collide."""
    while size & -size > max(most // length, 8):  # 8 numbers fill a cache line
        size = next_fast_len(size + 1, real=True)
    return size


class _Convolution(Bilinear):
    """Convolution. Its gradients are a convolution and a correlation, so all derivatives are defined."""

    @staticmethod
    def forward(weight: Tensor, x: Tensor) -> Tensor:
        sizes = _transform_sizes(x.shape[2:])
        kernel = _transform(wrap(weight, sizes[-1]), sizes)[:, None]
        wanted = [(size - 1, size) for size in x.shape[2:-1]]
        x = _contiguous(x)
        out = x.new_empty(*x.shape[:-1], sizes[-1])
        for head, some in _slices(x, sizes):
            product = _inverse(_transform(x[head, some], sizes).mul_(kernel[head]), wanted).real
            out[head, some] = product
        return out[..., : x.size(-1)]

    @staticmethod
    def gradients(
        grad: Tensor, weight: Tensor, x: Tensor, needed: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_weight = _Correlation.apply(grad, x) if needed[0] else None
        return grad_weight, _Convolution.apply(_reverse(weight), grad) if needed[1] else None


class _Correlation(Bilinear):
    """Sums ``[H, 2 n_1 - 1, …]`` of ``y_p x_q`` over all channels and all positions of one difference ``p - q``."""

    @staticmethod
    def forward(y: Tensor, x: Tensor) -> Tensor:
        sizes, y, x = _transform_sizes(x.shape[2:]), _contiguous(y), _contiguous(x)
        total = x.new_zeros(x.size(0), *sizes, dtype=x.dtype.to_complex())
        for head, some in _slices(x, sizes):
            total[head] += (_transform(y[head, some], sizes) * _transform(x[head, some], sizes).conj()).sum(1)
        wanted = [(1 - size, 2 * size - 1) for size in x.shape[2:-1]]
        return unwrap(_inverse(total, wanted), x.size(-1))

    @staticmethod
    def gradients(grad: Tensor, y: Tensor, x: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
        grad_y = _Convolution.apply(grad, x) if needed[0] else None
        return grad_y, _Convolution.apply(_reverse(grad), y) if needed[1] else None


def _reverse(weight: Tensor) -> Tensor:
    """The weight of the transposed mask."""
    return weight.flip(list(range(1, weight.dim())))


def _contiguous(x: Tensor) -> Tensor:
    """``x`` with contiguous signals. PyTorch is four times as fast at this with a matrix as with other tensors."""
    return x[0].flatten(1).contiguous().view(x.shape) if x.size(0) == 1 else x.contiguous()


def _slices(x: Tensor, sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Heads and channels that are transformed together."""
    # At least one signal. On CPU, 64 channels of 128 x 128 nodes take half the time with 2^18 numbers as with 2^20.
    most = max(1, limits.slice_numbers // 128 // prod(sizes))
    heads = min(most, max(x.size(0), 1))
    channels = most // heads
    for head in range(0, x.size(0), heads):
        for channel in range(0, x.size(1), channels):
            yield slice(head, head + heads), slice(channel, channel + channels)


def _transform(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Spectrum over the last axes; each axis is padded with zeros only when it is transformed."""
    out = spectrum(x, sizes[-1])
    for axis in range(2, len(sizes) + 1):
        out = torch.fft.fft(out, sizes[-axis], dim=-axis)
    return out


def _inverse(spectrum: Tensor, wanted: Sequence[tuple[int, int]]) -> Tensor:
    """`signal` at the wanted positions; each axis but the last is cut right after it is transformed.

    Args:
        spectrum: As `_transform` returns it.
        wanted: First position, which may be negative, and number of positions of each axis but the last.
    """
    for axis in range(len(wanted) + 1, 1, -1):
        first, number = wanted[1 - axis]
        spectrum = torch.fft.ifft(spectrum, dim=-axis)
        spectrum = spectrum.roll(-first, -axis) if first < 0 else spectrum
        spectrum = spectrum.narrow(-axis, max(first, 0), number)
    return signal(spectrum)
