r"""Fourier transforms of real signals for convolutions: half as many complex numbers as a transform with padding.

The spectrum is taken at the frequencies :math:`2\pi (k - 1/4) / L`. In the product of two spectra, terms of the
convolution that exceed the ends of the ``L`` positions are then multiplied by :math:`\pm i`. If the signals are real,
these terms are the imaginary part of the result, and the real part is correct without padding by ``L`` zeros.

Reference: Crandall and Fagin, *Discrete weighted transforms and large-integer arithmetic*, Mathematics of Computation
62, 1994.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.ops.memo import once_per_setting


def spectrum(x: Tensor, size: int) -> Tensor:
    """Spectrum along the last axis of a real signal, or of a complex one (`wrap`).

    Args:
        x: Shape ``[…, n]``, where ``n`` is at most ``size``.
        size: ``L``; lengths with small prime factors are fast.

    Returns:
        Shape ``[…, L]``, complex.
    """
    padded = x.new_zeros(*x.shape[:-1], size, dtype=x.dtype.to_complex())
    padded[..., : x.size(-1)] = x
    return torch.fft.fft(padded.mul_(_turns(size, padded.dtype, x.device)[0]))


def signal(x: Tensor) -> Tensor:
    """Complex signal of a spectrum ``[…, L]``. The real part of the signal of a product is the convolution."""
    return torch.fft.ifft(x).mul_(_turns(x.size(-1), x.dtype, x.device)[1])


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


@once_per_setting(32)
def _turns(size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    r"""Factors :math:`e^{i \pi j / (2 L)}` before a transform, and their inverses."""
    angle = torch.arange(size, dtype=torch.float64, device=device) * (pi / (2 * size))
    turns = torch.polar(torch.ones_like(angle), angle).to(dtype)  # computed in double precision and then rounded
    return turns, turns.conj().resolve_conj()
