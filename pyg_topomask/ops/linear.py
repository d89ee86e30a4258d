"""Affine maps of many rows, by the faster one of the two libraries that torch has for products of matrices on CPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pyg_topomask.ops.native import loader

# For each new number of rows, oneDNN compiles code in about 1 ms. Products with at least this many multiplications
# repay it.
_LEAST_PRODUCTS = 2**26

# The number of rows is unknown when code is traced, and this one is assumed. If the product is then large, the traced
# code calls `linear`. Smaller products are left to torch.compile, which joins them with the operations around them.
_ASSUMED_ROWS = 2**14

_TILE = 8, 48  # the compiled product computes tiles of so many rows and columns of the result
_WORK_PER_THREAD = 2**25  # multiplications that are worth a second thread

load = partial(loader.load, "products")
"""The library, compiled if necessary, or the reason why there is none."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, as `torch.nn.functional.linear` computes it.

    MKL, which torch uses, has no AVX-512 products for processors of other makers than Intel. There, large products of
    float32 are computed by oneDNN, which torch contains as well: on an AMD processor of the fifth EPYC generation, maps
    of 10,500 rows from 96 to 192 channels took 2.8 ms instead of 7.7 ms.

    Args:
        x: Shape ``[N, in_channels]``; other shapes are left to torch.
        weight: Shape ``[out_channels, in_channels]``.
        bias: Shape ``[out_channels]``; none if :obj:`None`.

    Returns:
        Shape ``[N, out_channels]``.
    """
    if torch.compiler.is_compiling():
        large = weight.numel() * _ASSUMED_ROWS >= _LEAST_PRODUCTS and not loader.is_transformed()
        return (_linear if large and _serves(x, weight, bias) else functional.linear)(x, weight, bias)
    if x.dim() == 2 and x.size(0) * weight.numel() >= _LEAST_PRODUCTS and _serves(x, weight, bias):
        return _Linear.apply(x, weight, bias)
    return functional.linear(x, weight, bias)


def _serves(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN can compute these products, and is faster with large ones."""
    if x.dim() != 2 or weight.dim() != 2 or x.size(1) != weight.size(1):
        return False
    if bias is not None and bias.shape != weight.shape[:1]:
        return False
    given = [part for part in (x, weight, bias) if part is not None]
    if any(part.device.type != "cpu" or part.dtype != torch.float32 for part in given):
        return False
    return not torch.is_autocast_enabled("cpu") and _onednn_is_faster()


@torch.compiler.assume_constant_result
def _onednn_is_faster() -> bool:
    return onednn_is_faster()


@lru_cache
def onednn_is_faster() -> bool:
    """Whether this is a processor with AVX-512 that Intel did not make, and torch contains both libraries."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        description = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "GenuineIntel" not in description and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """``a.T @ b`` for ``a [N, m]`` and ``b [N, n]``, as the gradient of a weight is: ``[m, n]``, not differentiable.

    Compiled code computes it in float32 if ``m`` is a multiple of 8 and ``n`` one of 48. With 10,507 rows of 96 numbers
    on the processor above, it took 1.4 ms, and MKL 2.5 ms.
    """
    fits = not any(size % tile for size, tile in zip((a.size(1), b.size(1)), _TILE))
    if not fits or {a.dtype, b.dtype} != {torch.float32} or isinstance(load(), str):
        return a.t() @ b
    library: Any = load()
    a, b, out = a.contiguous(), b.contiguous(), a.new_empty(a.size(1), b.size(1))
    threads = loader.num_threads(a.size(0) * out.numel(), _WORK_PER_THREAD)
    sizes = map(ctypes.c_int64, (a.size(0), a.size(1), b.size(1), threads))
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (a, b, out)]
    failure = library.transposed_product(*pointers[:2], *sizes, pointers[2])
    loader.refuse_failure(failure, f"a product of {a.size(0)} rows")
    return out


class _Linear(torch.autograd.Function):
    """The gradients of ``x`` and ``weight`` are such products, so higher derivatives exist."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # oneDNN reads them as if they had no gaps.
        bias = None if bias is None else bias.contiguous()
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight.contiguous(), bias, "none", [], "")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            _Linear.apply(grad, weight.t(), None) if ctx.needs_input_grad[0] else None,
            _TransposedProduct.apply(grad, x) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return torch.vmap(functional.linear, in_dims)(*inputs), 0


class _TransposedProduct(torch.autograd.Function):
    """``a.T @ b`` with derivatives, and by torch under ``vmap``."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return transposed_product(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return b @ grad.t(), a @ grad

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        return torch.vmap(lambda a, b: a.t() @ b, in_dims)(a, b), 0


@torch.library.custom_op("topomask::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` as one node of a compiled graph."""
    return linear(x, weight, bias)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.size(0), weight.size(0))


@torch.library.custom_op("topomask::linear_parameters", mutates_args=())
def _parameter_gradients(grad: Tensor, x: Tensor, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the weight, and of the bias or an empty tensor."""
    large = grad.numel() * x.size(1) >= _LEAST_PRODUCTS
    of_weight = transposed_product(grad, x) if large else grad.t() @ x
    return of_weight, grad.sum(0) if has_bias else grad.new_empty(0)


@_parameter_gradients.register_fake
def _(grad: Tensor, x: Tensor, has_bias: bool) -> tuple[Tensor, Tensor]:
    return grad.new_empty(grad.size(1), x.size(1)), grad.new_empty(grad.size(1) if has_bias else 0)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    weight_grad, bias_grad = _parameter_gradients(grad, x, of_bias) if of_weight or of_bias else (None, None)
    return _linear(grad, weight.t(), None) if of_x else None, weight_grad, bias_grad if of_bias else None


_linear.register_autograd(_backward, setup_context=_setup_context)
