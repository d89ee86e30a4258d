"""Attention on pairs in one compiled function, which keeps no array of one number per pair and head.

The function is that of ``compiled_pairs.py`` on CPU, and of ``fused_triton.py`` on CUDA.
It is a custom operator of torch, which ``torch.compile`` takes for one node. Its backward pass computes the
scores again. Second derivatives are those of the kernels in plain torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention import compiled_pairs, fused_triton
from pyg_topomask.ops.attention.compiled_pairs import Inputs, without_gaps
from pyg_topomask.ops.attention.pair_kernels import EdgeVectors, PairKernel, scaled
from pyg_topomask.ops.hashing import draw_seeds, keep_factors
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.numerics import weighted_mean
from pyg_topomask.ops.second_derivatives import gradients_in_torch
from pyg_topomask.ops.sparse import Combination, Pattern

# Numbers of a pair's key and value, above which products of whole matrices are faster.
_MOST_NUMBERS = 256


def refuses(q: Tensor, v: Tensor, edges: bool = False) -> str | None:
    """Why the compiled function cannot serve, or should not; :obj:`None` if it can.

    Args:
        q: Queries, shape ``[num_rows, H, R]``.
        v: Values, shape ``[num_cols, H, D]``.
        edges: Whether there are edge vectors.
    """
    if q.device.type not in ("cpu", "cuda"):
        return f"it runs on CPU and CUDA, and the queries are on {q.device}"
    if q.dtype not in compiled_pairs.ENTRY:
        return f"it computes in float32 and float64 (got {q.dtype})"
    if 0 in (q.size(-1), v.size(-1)):
        return "vectors without numbers are left to plain torch"
    if q.size(-1) + v.size(-1) > _MOST_NUMBERS:
        return f"keys and values of more than {_MOST_NUMBERS} numbers are faster as matrices"
    if _uses_triton(q):
        return "edge vectors are served on CPU only" if edges else fused_triton.refuses(q)
    return loader.missing("pairs")


def divides(q: Tensor) -> bool:
    """Whether the compiled function serves `fused_means`, too: the one on CPU does."""
    return not _uses_triton(q)


def serves_heads(width: int, channels: int, device: torch.device) -> bool:
    """Whether the compiled function on CPU serves float32 and float64 heads of so many features and channels."""
    fits = width > 0 < channels and width + channels <= _MOST_NUMBERS
    return device.type == "cpu" and fits and loader.missing("pairs") is None


def _uses_triton(q: Tensor) -> bool:
    return q.is_cuda


def fused_sums(
    kernel: PairKernel,
    pattern: Pattern,
    entries: Tensor | Combination,
    bounds: Tensor | Combination,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: EdgeVectors | None = None,
) -> Tensor:
    """Sums of all heads in the form of `weighted_mean`, as `PairKernel.sums` gives them for one.

    Args:
        kernel: The kernel.
        pattern: The support, ``P`` pairs. Queries, keys, values and the result are in the order of the nodes.
        entries, bounds: Shape ``[P]``, or ``[P, H]``; on CPU perhaps not evaluated yet. The same object if the mask is
            its own bound.
        q: Queries, shape ``[num_rows, H, R]``.
        k, v: Keys and values, shape ``[num_cols, H, R]`` and ``[num_cols, H, D]``.
        edges: Edge vectors, for the softmax kernel; none if :obj:`None`.

    Returns:
        Shape ``[num_rows, H, D + 1]`` or ``[num_rows, H, D + 2]``.
    """
    if _uses_triton(q):  # its kernels read rows in the order of the pattern
        own = Pattern(pattern.row, pattern.col, pattern.num_rows, pattern.num_cols)
        q, k, v = (pattern.arrange(x) for x in (q, k, v))
        return pattern.restore(_attend(kernel, own, entries, bounds, q, k, v)[0])
    return _attend(kernel, pattern, entries, bounds, q, k, v, edges)[0]


def fused_means(
    kernel: PairKernel,
    pattern: Pattern,
    entries: Tensor | Combination,
    bounds: Tensor | Combination,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tolerance: float | Tensor,
    key_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Quotients of `fused_sums`, by the rules of `weighted_mean`.

    Args:
        kernel, pattern, entries, bounds, q, k, v: As in `fused_sums`.
        tolerance: As in `weighted_mean`; a number, or one per node, shape ``[num_rows, 1, 1]``.
        key_scale: Powers of two by which keys are multiplied, shape ``[num_cols, H, 1]``; queries are then multiplied
            by the power of two that belongs to their own size. They cancel in the quotient. None if :obj:`None`.

    Returns:
        Means, shape ``[num_rows, H, D]``; and the denominators without a gradient, 0 where they vanish, shape
        ``[num_rows, H]``, in the order of the pattern.
    """
    limits = tolerance.reshape(-1).to(q.dtype) if isinstance(tolerance, Tensor) else q.new_full((1,), tolerance)
    return _attend(kernel, pattern, entries, bounds, q, k, v, tolerance=limits, key_scale=key_scale)


def _attend(
    kernel: PairKernel,
    pattern: Pattern,
    entries: Tensor | Combination,
    bounds: Tensor | Combination,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: EdgeVectors | None = None,
    tolerance: Tensor | None = None,
    key_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    weights, coeffs = _parts(entries)
    bound_weights, bound_coeffs = (None, None) if bounds is entries else _parts(bounds)
    if kernel.name == "additive":  # q + k is the product of (q, 1) and (1, k)
        q, k = torch.cat([q, torch.ones_like(q)], -1), torch.cat([torch.ones_like(k), k], -1)
    seed = draw_seeds(1) if kernel.dropout else None
    edge, of_pair, common = (None, None, 0) if edges is None else edges
    tables = pattern.order, coeffs, bound_coeffs
    rest = pattern.rowptr, pattern.col, of_pair, seed, *tables, key_scale, tolerance, common
    return _pairs(q, k, v, weights, bound_weights, edge, *rest, *kernel)


def _parts(entries: Tensor | Combination) -> tuple[Tensor, Tensor | None]:
    """Weights and coefficients ``[Q, P]``; or entries without gaps, those of a pair or those of a head side by side.

    Equal entries of all pairs may be one number.
    """
    if isinstance(entries, Combination):
        return entries.weights.contiguous(), entries.coeffs.t().contiguous()
    fits = entries.stride() == (0,) or entries.t().is_contiguous()
    return entries if fits else entries.contiguous(), None


_NUM_TENSORS = 15  # of the inputs, which come first
_DIFFERENTIABLE = 6
_SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor entries, Tensor? bounds, Tensor? edge, Tensor rowptr, Tensor col, "
    "Tensor? edge_of_pair, Tensor? seed, Tensor? order, Tensor? coeffs, Tensor? bound_coeffs, Tensor? key_scale, "
    "Tensor? tolerance, int common_edges, str name, bool signed, bool signed_features, float negative_slope, "
    "float dropout"
)


@torch.library.custom_op("topomask::pairs", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _pairs(*args: Any) -> tuple[Tensor, Tensor]:
    """Sums and an empty tensor, or means and their denominators."""
    inputs = Inputs(*args)
    result, denominator = _empty_results(*args)
    _call(inputs, {"sums": result, "denominator": denominator})
    return result, denominator


@_pairs.register_fake
def _empty_results(*args: Any) -> tuple[Tensor, Tensor]:
    inputs = Inputs(*args)
    rows = inputs.q.shape[:2]
    return inputs.q.new_empty(*rows, inputs.columns), inputs.q.new_empty(rows if inputs.tolerance is not None else 0)


@torch.library.custom_op(
    "topomask::pairs_backward",
    mutates_args=(),
    schema=f"(Tensor grad, bool of_entries, bool of_bounds, Tensor denominator, {_SCHEMA}) "
    f"-> ({', '.join(['Tensor'] * _DIFFERENTIABLE)})",
)
def _gradients(grad: Tensor, of_entries: bool, of_bounds: bool, denominator: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, entries, bounds and edge vectors; those of the masks are empty unless asked for."""
    inputs, grads = Inputs(*args), _empty_gradients(grad, of_entries, of_bounds, denominator, *args)
    names = ("grad_q", "grad_k", "grad_v", "grad_entry", "grad_bound", "grad_edge")
    given = {name: grad for name, grad in zip(names, grads) if grad.numel() or name in names[:3]}
    for name in given.keys() & {"grad_entry", "grad_bound"}:
        given[name].zero_()
    _call(inputs, {"denominator": denominator, "grad": grad.contiguous(), **given})
    return grads


@_gradients.register_fake
def _empty_gradients(
    grad: Tensor, of_entries: bool, of_bounds: bool, denominator: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    inputs = Inputs(*args)
    # Entries have a stride between heads, which their gradients share; the others are contiguous.
    weights = (
        torch.empty_like(x) if wanted and x is not None else grad.new_empty(0)
        for x, wanted in zip((inputs.entries, inputs.bounds), (of_entries, of_bounds))
    )
    q, k, v = (x.new_empty(x.shape) for x in inputs[:3])
    return q, k, v, *weights, grad.new_empty(0 if inputs.edge is None else inputs.edge.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.settings = inputs[_NUM_TENSORS:]


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, denominator = ctx.saved_tensors
    inputs, needed = Inputs(*tensors, *ctx.settings), ctx.needs_input_grad[:_DIFFERENTIABLE]
    if torch.is_grad_enabled():
        grads = gradients_in_torch(partial(_in_torch, inputs), tensors[:_DIFFERENTIABLE], needed, grad)
    else:
        grads = _gradients(grad, *needed[3:5], denominator, *inputs)
    found = (x if needs else None for x, needs in zip(grads, needed))
    return (*found, *(None,) * (len(inputs) - _DIFFERENTIABLE))


_pairs.register_autograd(_backward, setup_context=_setup_context)


def _in_torch(
    inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, entries: Tensor, bounds: Tensor | None, edge: Tensor | None
) -> Tensor:
    """The sums or means of `_pairs`, with other tensors instead of the first ones of ``inputs``."""
    row = torch.repeat_interleave(inputs.rowptr.diff())
    pattern = Pattern(row, inputs.col, q.size(0), k.size(0), inputs.order)
    entry = entries if inputs.coeffs is None else Combination(inputs.coeffs.t(), entries).values
    bound = entry
    if bounds is not None:
        bound = bounds if inputs.bound_coeffs is None else Combination(inputs.bound_coeffs.t(), bounds).values
    sides = (q[..., :1], k[..., 1:]) if inputs.name == "additive" else scaled(q, k, inputs.key_scale)
    number = torch.arange(inputs.col.numel() * q.size(1), device=q.device).view(-1, q.size(1))
    kept = None if inputs.seed is None else keep_factors(inputs.dropout, inputs.seed.to(q.device), number).to(v)
    edges = None
    if edge is not None and inputs.edge_of_pair is not None:
        edges = EdgeVectors(edge, inputs.edge_of_pair, inputs.common_edges)
    result = inputs.kernel.sums_of_heads(pattern, entry, bound, *sides, v, kept=kept, edges=edges)
    if inputs.tolerance is not None:
        result = weighted_mean(result, v.size(-1), inputs.tolerance[:, None, None])
    return result


def _call(inputs: Inputs, results: dict[str, Tensor]) -> None:
    """Fill results or gradients. Raises MemoryError."""
    if not _uses_triton(inputs.q):
        return compiled_pairs.call(inputs, results)
    q, k, v = without_gaps(inputs)
    structure = inputs.entries, inputs.bounds, inputs.rowptr, inputs.col, inputs.seed
    fused_triton.pair_sums(q, k, v, *structure, inputs.kernel, results)
