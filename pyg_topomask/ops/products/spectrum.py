r"""Fourier transforms of real signals for convolutions: half as many complex numbers as a transform with padding.

The spectrum is taken at the frequencies :math:`2\pi (k - 1/4) / L`. In the product of two spectra, terms of the
convolution that exceed the ends of the ``L`` positions are then multiplied by :math:`\pm i`. If the signals are real,
these terms are the imaginary part of the result, and the real part is correct without padding by ``L`` zeros.

Long transforms leave the cache of the processor. They are computed in two steps, on a matrix of 1,000 rows: transforms
of its columns, a multiplication by factors, and transforms of its rows. Their frequencies stay in the order of this
computation, which does not matter for products of spectra.

References: Crandall and Fagin, *Discrete weighted transforms and large-integer arithmetic*, Mathematics of Computation
62, 1994; Bailey, *FFTs in external or hierarchical memory*, Journal of Supercomputing 4, 1990.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import pi

import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.nn.functional import pad

# Number of rows of a long transform, and the shortest one, a multiple of it. Measured on CPU with 64 signals: two steps
# take 1.2 times the time of one with 40,000 numbers, as long with 2^16, and 0.8 (float64: 0.9) times with 2^17 to 2^20.
# At 2^20, 1,024 rows take 1.9 times as long as 1,000, because columns of 2^k rows collide in the cache.
_ROWS = 1000
_LONG = 80 * _ROWS


def transform_size(num: int) -> int:
    """Smallest number ``L`` of complex numbers, at least ``num``, whose transform is fast."""
    size = next_fast_len(num, real=True)
    return size if size < _LONG else _ROWS * next_fast_len(-(-num // _ROWS))


def spectrum(x: Tensor, size: int) -> Tensor:
    """Spectrum along the last axis of a real signal, or of a complex one (`wrap`).

    Args:
        x: Shape ``[…, n]``, where ``n`` is at most ``size``.
        size: ``L``, as `transform_size` gives it.

    Returns:
        Shape ``[…, L]``, complex.
    """
    padded = x.new_zeros(*x.shape[:-1], size, dtype=x.dtype.to_complex())
    padded[..., : x.size(-1)] = x
    if size < _LONG:
        turns, _ = _turns(size, padded.dtype, x.device)
        return torch.fft.fft(padded.mul_(turns))
    turns, _, factors, _ = _long_turns(_ROWS, size // _ROWS, padded.dtype, x.device)
    steps = _each(lambda one: torch.fft.fft(torch.fft.fft(one.mul_(turns), dim=0).mul_(factors), dim=1), padded)
    return steps.flatten(-2)


def signal(x: Tensor) -> Tensor:
    """Complex signal of a spectrum ``[…, L]``: shape ``[…, 1, L]``, or ``[…, 1000, L / 1000]`` if it is long.

    The real part of the signal of a product is the convolution.
    """
    size = x.size(-1)
    if size < _LONG:
        _, back = _turns(size, x.dtype, x.device)
        return torch.fft.ifft(x).mul_(back).unsqueeze(-2)
    _, back, _, factors = _long_turns(_ROWS, size // _ROWS, x.dtype, x.device)
    return _each(lambda one: torch.fft.ifft(torch.fft.ifft(one, dim=1).mul_(factors), dim=0).mul_(back), x)


def wrap(weight: Tensor, size: int) -> Tensor:
    """Weights of the differences ``1 - n … n - 1``, shape ``[…, 2 n - 1]``, as a complex signal ``[…, L]``.

    Negative differences are at the end of the imaginary part, with the opposite sign.
    """
    num = (weight.size(-1) + 1) // 2
    positive, negative = weight[..., num - 1 :], weight[..., : num - 1]
    return torch.complex(pad(positive, (0, size - num)), pad(-negative, (size - num + 1, 0)))


def unwrap(x: Tensor, num: int) -> Tensor:
    """The weights ``[…, 2 n - 1]`` of a complex signal ``[…, L]``, from its parts as `wrap` places them."""
    return torch.cat([-x.imag[..., x.size(-1) - num + 1 :], x.real[..., :num]], dim=-1)


def _each(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to one signal of ``[…, L]`` at a time, as a matrix of 1,000 rows that fits in the cache."""
    signals = x.unflatten(-1, (_ROWS, -1))
    if signals.numel() == x.size(-1):  # a copy would cost as much as a transform
        return function(signals.flatten(0, -3)[0]).expand(signals.shape)
    return torch.stack([function(one) for one in signals.flatten(0, -3)]).view(signals.shape)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _turns(size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    r"""Factors :math:`e^{i \pi j / (2 L)}` before a transform, and their inverses."""
    turns = _unit(torch.arange(size, dtype=torch.float64, device=device) / (4 * size), dtype)
    return turns, turns.conj().resolve_conj()


@lru_cache(maxsize=2)
@torch.inference_mode(False)
def _long_turns(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors ``[rows, 1]`` before a transform and their inverses, then ``[rows, columns]`` between its two steps and
    their inverses.

    Those between the steps are stored in the order of the tensors that they multiply.
    """
    row = torch.arange(rows, dtype=torch.float64, device=device)
    column = torch.arange(columns, dtype=torch.float64, device=device)
    turns = _unit(row[:, None] / (4 * rows), dtype)
    factors = _unit((0.25 - row) * column[:, None] / (rows * columns), dtype)
    return turns, turns.conj().resolve_conj(), factors.t(), factors.t().conj().resolve_conj().contiguous()


def _unit(turn: Tensor, dtype: torch.dtype) -> Tensor:
    r""":math:`e^{2 \pi i t}`, computed in double precision and then rounded."""
    angle = 2 * pi * turn
    return torch.polar(torch.ones_like(angle), angle).to(dtype)
