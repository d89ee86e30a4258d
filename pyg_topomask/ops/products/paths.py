r"""Products with masks of the paths in a forest, in one compiled function (``native/forest/``) or in plain torch.

The compiled function visits the nodes one after the other in a few nanoseconds each, so that deep trees take no more
time than shallow ones. It is a custom operator of torch. Second derivatives are those of plain torch.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products.forest import build_forest, sibling_order
from pyg_topomask.ops.products.trees import forest_product, hop_counts
from pyg_topomask.ops.second_derivatives import gradients_in_torch

load = partial(loader.load, "forest")
"""The library, compiled if necessary, or the reason why there is none."""

refuses = partial(loader.refuses, "forest")
"""Why the compiled function cannot serve tensors; :obj:`None` if it can."""

_WHAT = "the product with the mask of a forest"

_ENTRY = {torch.float32: "forest_product_float", torch.float64: "forest_product_double"}

# Bytes of a row in a task of the compiled function, and numbers that are worth a second thread.
_BLOCK_BYTES = 128
_WORK_PER_THREAD = 2**18

# Number of sums by distance that plain torch forms at a time, and that all threads of the compiled function keep. Few
# columns are slow, because nodes are then read in parts of a cache line. Measured on CPU with 2^10 to 2^18 nodes: 16
# columns take 1.2 to 1.4 times as long as 32. Gradients of values are summed over 16 columns at a time.
_SLICE_NUMEL = 2**22
_TASK_NUMEL = 3 * 2**26
_FEWEST_COLUMNS, _PART = 8, 16


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``call.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "heads", "channels", "block", "threads")),
        *((name, ctypes.c_int64) for name in ("hops", "weight_heads")),
        *((name, ctypes.c_void_p) for name in ("order", "above", "x", "weight", "y", "grad", "grad_x", "grad_weight")),
    ]


def path_product(parent: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    r"""Product with :math:`M_{ij} = \prod_e g_e` over the edges of the path from ``j`` to ``i``; 0 between trees.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``; `sibling_order` accepts it.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``, with the dtype of ``x``.
            Weights of roots are ignored.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    return (_product if refuses(x) is None else _plain)(x, weight, parent, False)


def hop_product(parent: Tensor, x: Tensor, values: Tensor) -> Tensor:
    r"""Product with :math:`M_{ij} = f(\mathrm{dist}(i, j))` of the distances in edges; 0 between trees.

    Args:
        parent: As in `path_product`.
        x: Shape ``[N, H, C]``.
        values: :math:`f` at 0, 1, … ``K`` edges, and 0 beyond; shape ``[H, K + 1]`` or ``[1, K + 1]``, with the dtype
            of ``x``.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``values``.
    """
    if values.size(1) == 1:
        return values * x  # [H, 1]
    return (_product if refuses(x) is None else _plain)(x, values, parent, True)


@once_per_batch
def _preorder(parent: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes in preorder, and the position of the parent of each position, −1 for roots."""
    build_forest(parent)  # refuses what is not a forest
    library: Any = load()
    parent = parent.long().contiguous()
    order, above = torch.empty_like(parent), torch.empty_like(parent)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (order, above))
    sizes = ctypes.c_void_p(parent.data_ptr()), ctypes.c_int64(parent.numel())
    loader.refuse_failure(library.forest_preorder(*sizes, *pointers), _WHAT)
    return order, above


def _plain(x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> Tensor:
    """The products in plain torch."""
    order = sibling_order(parent)
    if not by_hop:
        return forest_product(order, x, weight)

    def sums(x: Tensor) -> Tensor:
        counts = hop_counts(order, x.flatten(1), weight.size(1) - 1)
        return torch.einsum("hk,nkhc->nhc", weight, counts.unflatten(2, x.shape[1:]))

    step = max(1, _SLICE_NUMEL // max(x.size(0) * x.size(1) * weight.size(1), 1))
    parts = [checkpoint(sums, part, use_reentrant=False, preserve_rng_state=False) for part in x.split(step, dim=2)]
    return torch.cat(parts, dim=2)


@torch.library.custom_op("topomask::path_product", mutates_args=())
def _compiled(x: Tensor, weight: Tensor, parent: Tensor, order: Tensor, above: Tensor, by_hop: bool) -> Tensor:
    y = x.new_empty(x.shape)
    _call(x, weight, order, above, by_hop, {"y": y})
    return y


@_compiled.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _product(x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> Tensor:
    return _compiled(x, weight, parent, *_preorder(parent), by_hop)


@torch.library.custom_op("topomask::path_product_backward", mutates_args=())
def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, order: Tensor, above: Tensor, by_hop: bool, needs_weight: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the weight where it is needed, else an empty tensor."""
    results = {"grad": grad.contiguous(), "grad_x": x.new_empty(x.shape)}
    if not needs_weight:
        _call(x, weight, order, above, by_hop, results)
        return results["grad_x"], x.new_empty(0)
    block = _block(x, weight, above, by_hop)
    num_blocks = -(-x.size(2) // (min(block, _PART) if by_hop else block))
    parts = results["grad_weight"] = x.new_zeros(x.size(1), num_blocks, weight.size(1) if by_hop else x.size(0))
    _call(x, weight, order, above, by_hop, results)
    by_head = parts.sum(1)
    if weight.size(0 if by_hop else 1) == 1:
        by_head = by_head.sum(0, keepdim=True)
    return results["grad_x"], by_head if by_hop else by_head.t().contiguous()


@_gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(weight.shape if rest[-1] else 0)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.by_hop = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight, parent, order, above), needed = ctx.saved_tensors, ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():  # plain torch can be differentiated again
        grads = gradients_in_torch(lambda x, weight: _plain(x, weight, parent, ctx.by_hop), (x, weight), needed, grad)
    else:
        grad_x, grad_weight = _gradients(grad, x, weight, order, above, ctx.by_hop, needed[1])
        grads = [grad_x if needed[0] else None, grad_weight if needed[1] else None]
    return (*grads, None, None, None, None)


_compiled.register_autograd(_backward, setup_context=_setup_context)


def _block(x: Tensor, weight: Tensor, above: Tensor, by_hop: bool) -> int:
    """Number of columns in a task of the compiled function."""
    if not by_hop:
        return _BLOCK_BYTES // x.element_size()
    threads = torch.get_num_threads()
    most = _TASK_NUMEL // max(_num_levels(above, weight.size(1) - 1) * threads, 1)
    if most >= 2 * _PART and x.size(1) * x.size(2) >= 2 * _PART * threads:
        return 2 * _PART
    return min(max(most, _FEWEST_COLUMNS), _PART)


@once_per_batch
def _num_levels(above: Tensor, num_hops: int) -> int:
    """Numbers that a task keeps for each of its columns."""
    library: Any = load()
    library.forest_levels.restype = ctypes.c_int64
    levels = library.forest_levels(
        ctypes.c_void_p(above.data_ptr()), ctypes.c_int64(above.numel()), ctypes.c_int64(num_hops)
    )
    loader.refuse_failure(min(levels, 0), _WHAT)
    return int(levels)


def _call(x: Tensor, weight: Tensor, order: Tensor, above: Tensor, by_hop: bool, results: dict[str, Tensor]) -> None:
    """Fill the product or gradients. Raises MemoryError."""
    library: Any = load()
    tensors = {"x": x.contiguous(), "weight": weight.contiguous(), "order": order, "above": above, **results}
    heads, hops = (weight.size(0), weight.size(1) - 1) if by_hop else (weight.size(1), 0)
    call = _Call(
        nodes=x.size(0),
        heads=x.size(1),
        channels=x.size(2),
        block=_block(x, weight, above, by_hop),
        threads=loader.num_threads(x.numel() * (hops + 1), _WORK_PER_THREAD),
        hops=hops,
        weight_heads=heads,
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
    )
    loader.refuse_failure(getattr(library, _ENTRY[x.dtype])(ctypes.byref(call)), _WHAT)
