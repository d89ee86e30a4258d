"""The map of queries and keys to the output of attention in its primal representation, in linear time.

On CPU, one compiled function (``native/primal/``) computes it without an array of scores; it is a custom operator of
torch. Plain torch does so on other devices, in other dtypes, without a compiler, and for second derivatives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import LEVELS, dropout, dropout_reference
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.second_derivatives import gradients_in_torch

# Norm below which a query or key counts as zero, as in torch.nn.functional.normalize.
_ZERO_NORM = 1e-12

_ENTRY = {torch.float32: "primal_float", torch.float64: "primal_double"}
_WORK_PER_THREAD = 2**20  # scores that are worth a second thread

load = partial(loader.load, "primal")
"""The library, compiled if necessary, or the reason why there is none."""

refuses = partial(loader.refuses, "primal")
"""Why the compiled function cannot compute with these tensors; :obj:`None` if it can."""


def primal_map(
    qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, p: float = 0.0, training: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Map queries and keys to the output of each head, by scores that depend on the graph.

    For the query and the key :math:`a` of each head :math:`h`, with :math:`\phi(x) = x / \|x\|`:

    .. math::
        z_{ia} &= W_a^\top \phi(x_{ia}) + \big(w_a^\top \phi(x_{ia})\big) u_i \in \mathbb{R}^s, \qquad
        \mathrm{out}_{ih} = \sum_{a} M_a^\top\, \mathrm{Dropout}(z_{ia}) \in \mathbb{R}^D, \qquad
        \mathrm{squares}_a = \sum_i z_{ia}^2

    Reference: *Primphormer: Leveraging Primal Representation for Graph Transformers* (the submission), equations 2.5
    and 2.8; :class:`~pyg_topomask.nn.PrimphormerAttention` says what each tensor is in the paper.
    Cost: :math:`O(N H D s)` operations. Compiled code stores no scores, plain torch stores ``[2 H, N, s]``.

    Args:
        qk: Queries of all heads, then keys, shape ``[N, 2 H, D]``.
        update: Vectors :math:`u_i`, shape ``[N, s]``.
        weight: Matrices :math:`W_a`, and :math:`w_a` as their last column, shape ``[2 H, D, s + 1]``.
        out_weight: The two matrices :math:`M`, for queries and for keys, shape ``[2, s, D]``.
        p: Probability of dropout.
        training: Whether there is dropout.

    Returns:
        ``(out [N, H, D], squares [2 H, s])``, differentiable in all tensors. The dtype is that of ``qk``, which all
        tensors must have.
    """
    dropped = round(float(p) * LEVELS) if training else 0
    if dropped == LEVELS or refuses(qk, update, weight, out_weight) is not None:
        return _plain_map(qk, update, weight, out_weight, lambda z: dropout(z, p, training))
    seed = draw_seeds(1) if dropped else torch.zeros(1, dtype=torch.long, device="cpu")
    return _primal_map(qk, update, weight, out_weight, seed, dropped)


def unit_features(qk: Tensor) -> Tensor:
    """Queries and keys of unit length with heads first, ``[N, 2 H, D] → [2 H, N, D]``; zero below the norm 1e-12."""
    qk = qk.transpose(0, 1).contiguous()  # the small product of each head is then several times faster on CPU
    norm = torch.linalg.vector_norm(qk, dim=-1, keepdim=True)
    return qk / torch.where(norm > _ZERO_NORM, norm, torch.inf)


def primal_scores(qk: Tensor, update: Tensor, weight: Tensor) -> Tensor:
    """The scores :math:`z` of `primal_map`, ``[2 H, N, s]``."""
    scores, factor = (unit_features(qk) @ weight).split([weight.size(2) - 1, 1], dim=2)
    return torch.addcmul(scores, factor.contiguous(), update)


def sums_of_squares(scores: Tensor) -> Tensor:
    """Sums over the nodes of the squares of scores, ``[2 H, N, s] → [2 H, s]``."""
    return _SumOfSquares.apply(scores, 1).squeeze(1)


def map_scores(scores: Tensor, out_weight: Tensor, drop: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The results of `primal_map` for scores ``[2 H, N, s]``, of which ``drop`` zeroes some."""
    features, num_nodes, rank = scores.shape
    squares = sums_of_squares(scores)
    # Compute W_c [e; r] as W_ce e + W_cr r, without concatenation.
    halves = drop(scores).reshape(2, features // 2 * num_nodes, rank) @ out_weight
    return halves.sum(dim=0).unflatten(0, (features // 2, num_nodes)).transpose(0, 1), squares


def _plain_map(
    qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, drop: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """`primal_map` in plain torch."""
    return map_scores(primal_scores(qk, update, weight), out_weight, drop)


class _SumOfSquares(torch.autograd.Function):
    """Sum of squares along one dimension, kept as a dimension of size 1; neither pass stores the squares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return torch.linalg.vector_norm(x, dim=dim, keepdim=True).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return x * (2 * grad), None


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``primal.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "heads", "width", "rank", "threads", "by_node")),
        *((name, ctypes.c_int64) for name in ("seed", "dropped")),
        *((name, ctypes.c_void_p) for name in ("x", "update", "weight", "out_weight", "out", "squares")),
        *((name, ctypes.c_void_p) for name in ("grad_out", "grad_squares")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("x", "update", "weight", "out_weight")),
    ]


def _call(x: Tensor, seed: Tensor, dropped: int, **arrays: Tensor) -> None:
    """Fill results or gradients. Raises MemoryError."""
    library: Any = load()
    num_nodes, features, width = x.shape
    if x.stride(2) != 1 or x.stride(1) != width:
        x = x.contiguous()
    arrays = {"x": x} | {name: array.contiguous() for name, array in arrays.items()}
    call = _Call(
        nodes=num_nodes,
        heads=features // 2,
        width=width,
        rank=arrays["update"].size(1),
        threads=loader.num_threads(num_nodes * features * arrays["update"].size(1), _WORK_PER_THREAD),
        by_node=x.stride(0),
        seed=int(seed),
        dropped=dropped,
        **{name: array.data_ptr() for name, array in arrays.items()},
    )
    failure = getattr(library, _ENTRY[x.dtype])(ctypes.byref(call), ctypes.c_int("grad_out" in arrays))
    loader.refuse_failure(failure, f"scores of {num_nodes} nodes")


@torch.library.custom_op("topomask::primal_map", mutates_args=())
def _primal_map(
    qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, seed: Tensor, dropped: int
) -> tuple[Tensor, Tensor]:
    num_nodes, features, width = qk.shape
    out, squares = qk.new_empty(num_nodes, features // 2, width), qk.new_empty(features, update.size(1))
    given = {"update": update, "weight": weight, "out_weight": out_weight}
    _call(qk, seed, dropped, **given, out=out, squares=squares)
    return out, squares


@_primal_map.register_fake
def _(
    qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, seed: Tensor, dropped: int
) -> tuple[Tensor, Tensor]:
    num_nodes, features, width = qk.shape
    return qk.new_empty(num_nodes, features // 2, width), qk.new_empty(features, update.size(1))


@torch.library.custom_op("topomask::primal_map_backward", mutates_args=())
def _gradients(
    grad_out: Tensor,
    grad_squares: Tensor,
    qk: Tensor,
    update: Tensor,
    weight: Tensor,
    out_weight: Tensor,
    seed: Tensor,
    dropped: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = {"update": update, "weight": weight, "out_weight": out_weight}
    found = {"x": qk, **given}
    grads = {f"grad_{name}": torch.empty(x.shape, dtype=x.dtype) for name, x in found.items()}
    _call(qk, seed, dropped, **given, grad_out=grad_out, grad_squares=grad_squares, **grads)
    return grads["grad_x"], grads["grad_update"], grads["grad_weight"], grads["grad_out_weight"]


@_gradients.register_fake
def _(
    grad_out: Tensor,
    grad_squares: Tensor,
    qk: Tensor,
    update: Tensor,
    weight: Tensor,
    out_weight: Tensor,
    seed: Tensor,
    dropped: int,
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (qk, update, weight, out_weight))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropped = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_squares: Tensor | None) -> tuple[Tensor | None, ...]:
    qk, update, weight, out_weight, seed = ctx.saved_tensors
    needed = [*ctx.needs_input_grad[:4]]
    needed[3] &= grad_out is not None  # the squares do not depend on it
    if grad_out is None:
        grad_out = qk.new_zeros(qk.size(0), qk.size(1) // 2, qk.size(2))
    if grad_squares is None:
        grad_squares = qk.new_zeros(qk.size(1), update.size(1))
    tensors = (qk, update, weight, out_weight)
    if torch.is_grad_enabled():
        grads = gradients_in_torch(partial(_map_again, seed, ctx.dropped), tensors, needed, (grad_out, grad_squares))
    else:
        found = _gradients(grad_out, grad_squares, *tensors, seed, ctx.dropped)
        grads = [x if needs else None for x, needs in zip(found, needed)]
    return (*grads, None, None)


_primal_map.register_autograd(_backward, setup_context=_setup_context)


def _map_again(
    seed: Tensor, dropped: int, qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The map in plain torch, with the dropout of that seed."""

    def drop(scores: Tensor) -> Tensor:
        return dropout_reference(scores, int(seed), dropped) if dropped else scores

    return _plain_map(qk, update, weight, out_weight, drop)
