r"""Products over all paths of a forest, in one compiled function (``native/forest/``) or in plain torch.

The compiled function visits the nodes one after the other in a few nanoseconds each, so that deep trees take no more
time than shallow ones. It is a custom operator of torch. Second derivatives are those of plain torch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products.forest import sibling_order
from pyg_topomask.ops.products.trees import forest_product

# Sums may be rearranged, so that they fill vectors; unlike -ffast-math, these flags respect NaN and infinity.
load = partial(loader.load, "forest", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros")
"""The library, compiled if necessary, or the reason why there is none."""

_ENTRY = {torch.float32: "forest_product_float", torch.float64: "forest_product_double"}

# Bytes of a row in a task of the compiled function, and numbers that are worth a second thread.
_BLOCK_BYTES = 128
_WORK_PER_THREAD = 2**18

_WHAT = "the product with the mask of a forest"  # in messages


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``sweep.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "heads", "channels", "block")),
        *((name, ctypes.c_int64) for name in ("shift", "threads", "weight_heads")),
        *((name, ctypes.c_void_p) for name in ("order", "above", "x", "weight", "y", "grad", "grad_x", "grad_weight")),
    ]


def path_product(parent: Tensor, x: Tensor, weight: Tensor | None, shift: int = 0) -> Tensor:
    r"""Product with :math:`M_{ij} = \prod_e g_e` over the edges of the path from ``j`` to ``i``; 0 between trees.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``; `sibling_order` accepts it.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``, with the dtype of ``x``; one
            if :obj:`None`. Weights of roots are ignored.
        shift: Number of columns by which each edge shifts a row to the right; zeros are shifted in from the left.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    if refuses(x) is None:
        return _product(x, weight, parent, *_preorder(parent), shift)
    return forest_product(sibling_order(parent), x, weight, shift)


def hop_counts(parent: Tensor, x: Tensor, num_hops: int) -> Tensor:
    """Sums of ``x`` ``[N, C]`` over the nodes at 0, 1, … ``num_hops`` hops from each node: ``[N, num_hops + 1, C]``.

    An edge shifts a row of ``(num_hops + 1) C`` columns by ``C``: the row is a histogram over distances, shifted by a
    hop.
    """
    rows = pad(x[:, None], (0, num_hops * x.size(1)))  # [N, 1, (K + 1) C]
    return path_product(parent, rows, None, x.size(1)).view(x.size(0), num_hops + 1, x.size(1))


def refuses(x: Tensor) -> str | None:
    """Why the compiled function cannot serve ``x``; :obj:`None` if it can."""
    if x.device.type != "cpu":
        return f"it runs on CPU, and the input is on {x.device}"
    if x.dtype not in _ENTRY:
        return f"it computes in float32 and float64 (got {x.dtype})"
    return _no_library()


@torch.compiler.assume_constant_result
def _no_library() -> str | None:
    library = load()
    return library if isinstance(library, str) else None


@once_per_batch
def _preorder(parent: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes in preorder, and the position of the parent of each position, −1 for roots."""
    library: Any = load()
    parent = parent.long().contiguous()
    order, above = torch.empty_like(parent), torch.empty_like(parent)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (order, above))
    sizes = ctypes.c_void_p(parent.data_ptr()), ctypes.c_int64(parent.numel())
    loader.refuse_failure(library.forest_preorder(*sizes, *pointers), _WHAT)
    return order, above


@torch.library.custom_op("topomask::path_product", mutates_args=())
def _product(x: Tensor, weight: Tensor | None, parent: Tensor, order: Tensor, above: Tensor, shift: int) -> Tensor:
    y = x.new_empty(x.shape)
    _call(x, weight, order, above, shift, {"y": y})
    return y


@_product.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("topomask::path_product_backward", mutates_args=())
def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, order: Tensor, above: Tensor, shift: int, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the weight where it is needed, else an empty tensor."""
    grad_x = x.new_empty(x.shape)
    if weight is None or not needs_weight:
        _call(x, weight, order, above, shift, {"grad": grad.contiguous(), "grad_x": grad_x})
        return grad_x, x.new_empty(0)
    parts = x.new_zeros(x.size(1), -(-x.size(2) // _block(x, shift)), x.size(0))
    results = {"grad": grad.contiguous(), "grad_x": grad_x, "grad_weight": parts}
    _call(x, weight, order, above, shift, results)
    parts = parts.sum(1).t()
    return grad_x, parts.contiguous() if weight.size(1) > 1 else parts.sum(1, keepdim=True)


@_gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if weight is None or not rest[-1] else weight.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.shift = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight, parent, order, above), needed = ctx.saved_tensors, ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():  # plain torch can be differentiated again
        inputs = [x for x, needs in zip((x, weight), needed) if needs]
        product = forest_product(sibling_order(parent), x, weight, ctx.shift)
        found = iter(torch.autograd.grad(product, inputs, grad, create_graph=True))
        grads = tuple(next(found) if needs else None for needs in needed)
    else:
        grad_x, grad_weight = _gradients(grad, x, weight, order, above, ctx.shift, needed[1])
        grads = (grad_x if needed[0] else None, grad_weight if needed[1] else None)
    return (*grads, None, None, None, None)


_product.register_autograd(_backward, setup_context=_setup_context)


def _block(x: Tensor, shift: int) -> int:
    """Number of columns in a task of the compiled function."""
    return x.size(2) if shift else _BLOCK_BYTES // x.element_size()


def _call(
    x: Tensor, weight: Tensor | None, order: Tensor, above: Tensor, shift: int, results: dict[str, Tensor]
) -> None:
    """Fill the product or gradients. Raises MemoryError."""
    library: Any = load()
    tensors = {"x": x.contiguous(), "order": order, "above": above, **results}
    if weight is not None:
        tensors["weight"] = weight.contiguous()
    call = _Call(
        nodes=x.size(0),
        heads=x.size(1),
        channels=x.size(2),
        block=_block(x, shift),
        weight_heads=0 if weight is None else weight.size(1),
        shift=shift,
        threads=loader.num_threads(x.numel(), _WORK_PER_THREAD),
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
    )
    loader.refuse_failure(getattr(library, _ENTRY[x.dtype])(ctypes.byref(call)), _WHAT)
