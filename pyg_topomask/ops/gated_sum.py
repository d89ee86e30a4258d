"""Sums over the edges of each node, weighted by gates: the aggregation of `GatedGCN`.

On CPU, one compiled function (``native/gated/``) computes them. It is a custom operator of torch, which
``torch.compile`` calls as it is. Plain torch computes them on other devices, in other dtypes, without a compiler, and
for second derivatives.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.edge_sum import incidence, sum_rows
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.sparse import Pattern, spmm

# Keeps the normalised sum finite if every gate is closed, as in GraphGPS.
_EPS = 1e-6

_ENTRY = {torch.float32: "gated_sum_float", torch.float64: "gated_sum_double"}
_WORK_PER_THREAD = 2**17  # numbers of edges that are worth a second thread

load = partial(loader.load, "gated")
"""The library, compiled if necessary, or the reason why there is none."""

refuses = partial(loader.refuses, "gated")
"""Why the compiled function cannot compute with these tensors; :obj:`None` if it can."""


class _Call(ctypes.Structure):
    """Arguments of the compiled function, described in ``sum.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "edges", "channels", "threads")),
        *((f"{name}_by_row", ctypes.c_int64) for name in ("target", "source", "value")),
        *((name, ctypes.c_void_p) for name in ("entering_ptr", "entering", "sources")),
        *((name, ctypes.c_void_p) for name in ("leaving_ptr", "leaving", "targets")),
        *((name, ctypes.c_void_p) for name in ("target", "source", "value", "edge", "scale", "out", "e", "total")),
        *((name, ctypes.c_void_p) for name in ("grad_out", "grad_e", "slope")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("target", "source", "value", "edge", "scale")),
    ]


_EDGES = ("entering_ptr", "entering", "sources", "leaving_ptr", "leaving", "targets")


def gated_sum(
    target: Tensor, source: Tensor, value: Tensor, edge: Tensor, edge_index: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Sum of the sources' values over each node's edges, weighted by gates that are normalised channel by channel.

    .. math::
        e_{ij} &= \mathrm{target}_i + \mathrm{source}_j + \mathrm{edge}_{ij}, \qquad
        \sigma_{ij} = s_{ij} \, \mathrm{sigmoid}(e_{ij}) \\
        \mathrm{out}_i &= \frac{\sum_j \sigma_{ij} \odot \mathrm{value}_j}{\sum_j \sigma_{ij} + 10^{-6}}

    for the edges :math:`j \to i`. Of the arrays with one row per edge, only :math:`e` is kept for the backward pass,
    which computes the gates again.

    Args:
        target, source, value: Per node, shape ``[N, C]``.
        edge: Per edge, shape ``[E, C]``.
        edge_index: Edges, shape ``[2, E]``.
        scale: Factor :math:`s` of each edge's gate, shape ``[E, 1]``; one if :obj:`None`.

    Returns:
        ``(out [N, C], e [E, C])``, differentiable in all but ``edge_index``.

    Raises:
        ValueError: If a shape differs from these.
    """
    _check_shapes(target, source, value, edge, edge_index, scale)
    if refuses(target, source, value, edge, scale) is not None:
        if torch.compiler.is_compiling() or loader.is_transformed():
            return _traceable_sum(target, source, value, edge, edge_index, scale)
        patterns = incidence(edge_index, value.size(0))
        return _GatedSum.apply(target, source, value, edge, scale, edge_index, patterns)
    out, e, _ = _gated_sum(target, source, value, edge, scale, edge_index, *_sorted_edges(edge_index, value.size(0)))
    return out, e


def _check_shapes(
    target: Tensor, source: Tensor, value: Tensor, edge: Tensor, edge_index: Tensor, scale: Tensor | None
) -> None:
    if value.dim() != 2 or edge_index.dim() != 2:
        raise ValueError(
            f"'value' must be [N, C] and 'edge_index' [2, E] (got {[*value.shape]} and {[*edge_index.shape]})"
        )
    num_nodes, channels = value.shape
    num_edges = edge_index.size(1)
    expected = {"target": (target, num_nodes, channels), "source": (source, num_nodes, channels)}
    expected |= {"edge": (edge, num_edges, channels)}
    expected |= {} if scale is None else {"scale": (scale, num_edges, 1)}
    for name, (x, *shape) in expected.items():
        if [*x.shape] != shape:
            raise ValueError(f"'{name}' must have shape {shape} (got {[*x.shape]})")


def _traceable_sum(
    target: Tensor, source: Tensor, value: Tensor, edge: Tensor, edge_index: Tensor, scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`gated_sum` from its definition, for ``torch.compile`` and the transforms of `torch.func`."""
    first, second = edge_index
    e = target.index_select(0, second) + source.index_select(0, first) + edge
    gate = e.sigmoid() if scale is None else e.sigmoid() * scale
    total = torch.zeros_like(value).index_add(0, second, gate)
    return torch.zeros_like(value).index_add(0, second, gate * value.index_select(0, first)) / (total + _EPS), e


@partial(once_per_batch, traced=True)
def _sorted_edges(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """Edges that enter each node and their sources, and edges that leave each node and their targets, int32."""
    entering, leaving = incidence(edge_index, num_nodes)
    sources, targets = (end.index_select(0, pattern.col).int() for end, pattern in zip(edge_index, (entering, leaving)))
    return entering.rowptr, entering.col, sources, leaving.rowptr, leaving.col, targets


@torch.library.custom_op("topomask::gated_sum", mutates_args=())
def _gated_sum(
    target: Tensor,
    source: Tensor,
    value: Tensor,
    edge: Tensor,
    scale: Tensor | None,
    edge_index: Tensor,
    entering_ptr: Tensor,
    entering: Tensor,
    sources: Tensor,
    leaving_ptr: Tensor,
    leaving: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The results, and the sum of each node's gates ``[N, C]``."""
    arrays = {"out": torch.empty(value.shape, dtype=value.dtype), "e": torch.empty(edge.shape, dtype=edge.dtype)}
    arrays["total"] = torch.empty_like(arrays["out"])
    edges = (entering_ptr, entering, sources, leaving_ptr, leaving, targets)
    rows = {"target": target, "source": source, "value": value}
    _call(value, edges, rows=rows, edge=edge.contiguous(), scale=scale, **arrays)
    return arrays["out"], arrays["e"], arrays["total"]


@_gated_sum.register_fake
def _(target: Tensor, source: Tensor, value: Tensor, edge: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return value.new_empty(value.shape), edge.new_empty(edge.shape), value.new_empty(value.shape)


@torch.library.custom_op("topomask::gated_sum_backward", mutates_args=())
def _gradients(
    grad_out: Tensor,
    grad_e: Tensor | None,
    value: Tensor,
    scale: Tensor | None,
    out: Tensor,
    e: Tensor,
    total: Tensor,
    entering_ptr: Tensor,
    entering: Tensor,
    sources: Tensor,
    leaving_ptr: Tensor,
    leaving: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of targets, sources, values, edges and scales; the last one is empty without scales."""
    grads = [torch.empty(out.shape, dtype=out.dtype) for _ in range(3)]
    grads += [torch.empty_like(e), e.new_empty((0, 1) if scale is None else scale.shape)]
    edges = (entering_ptr, entering, sources, leaving_ptr, leaving, targets)
    names = (f"grad_{name}" for name in ("target", "source", "value", "edge", "scale"))
    arrays = {"out": out, "e": e, "total": total, "slope": torch.empty_like(out), **dict(zip(names, grads))}
    of_e = None if grad_e is None else grad_e.contiguous()
    _call(value, edges, rows={"value": value}, scale=scale, grad_out=grad_out.contiguous(), grad_e=of_e, **arrays)
    return grads[0], grads[1], grads[2], grads[3], grads[4]


@_gradients.register_fake
def _(grad_out: Tensor, grad_e: Tensor, value: Tensor, scale: Tensor | None, *rest: Tensor) -> tuple[Tensor, ...]:
    e, of_scale = rest[1], (0, 1) if scale is None else scale.shape
    return *(value.new_empty(value.shape) for _ in range(3)), e.new_empty(e.shape), e.new_empty(of_scale)


def _call(value: Tensor, edges: tuple[Tensor, ...], rows: dict[str, Tensor], **arrays: Tensor | None) -> None:
    """Fill results or gradients. Raises MemoryError."""
    library: Any = load()
    rows = {name: x if x.stride(1) == 1 else x.contiguous() for name, x in rows.items()}  # parts of one array as well
    scale = arrays.pop("scale")
    arrays |= {**rows, "scale": None if scale is None else scale.contiguous(), **dict(zip(_EDGES, edges))}
    call = _Call(
        nodes=value.size(0),
        edges=edges[1].numel(),
        channels=value.size(1),
        threads=loader.num_threads(edges[1].numel() * value.size(1), _WORK_PER_THREAD),
        **{f"{name}_by_row": x.stride(0) for name, x in rows.items()},
        **{name: x.data_ptr() for name, x in arrays.items() if x is not None and x.numel() > 0},
    )
    failure = getattr(library, _ENTRY[value.dtype])(ctypes.byref(call), ctypes.c_int("grad_out" in arrays))
    loader.refuse_failure(failure, f"gates of {edges[1].numel()} edges")


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, value, _, scale, edge_index, *edges = inputs
    ctx.save_for_backward(value, scale, *output, edge_index, *edges)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_e: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    value, scale, out, e, total, edge_index, *edges = ctx.saved_tensors
    if grad_out is None or torch.is_grad_enabled():
        grads = _differentiable_gradients(grad_out, grad_e, value, scale, e, incidence(edge_index, value.size(0)))
    else:
        grads = _gradients(grad_out, grad_e, value, scale, out, e, total, *edges)
    return (*(x if needs else None for x, needs in zip(grads, ctx.needs_input_grad[:5])), *(None,) * 7)


_gated_sum.register_autograd(_backward, setup_context=_setup_context)


def _differentiable_gradients(
    grad_out: Tensor | None,
    grad_e: Tensor | None,
    value: Tensor,
    scale: Tensor | None,
    e: Tensor,
    patterns: tuple[Pattern, Pattern],
) -> tuple[Tensor | None, ...]:
    """Gradients of targets, sources, values, edges and scales as functions that can be differentiated again."""
    (entering, leaving), grad_value, grad_scale = patterns, None, None
    ones = e.new_ones(entering.nnz)
    if grad_out is not None:
        with torch.enable_grad():
            gate = e.sigmoid() if scale is None else e.sigmoid() * scale
            of_edges = spmm(leaving.transposed[0], ones, value)
            out = spmm(entering, ones, gate * of_edges) / (spmm(entering, ones, gate) + _EPS)
        inputs = [x for x in (e, value, scale) if x is not None and x.requires_grad]
        found = torch.autograd.grad(out, inputs, grad_out, create_graph=torch.is_grad_enabled(), allow_unused=True)
        grads = {id(x): grad for x, grad in zip(inputs, found)}
        own, grad_value, grad_scale = (grads.get(id(x)) for x in (e, value, scale))
        if own is not None:
            grad_e = own if grad_e is None else own + grad_e
    if grad_e is None:
        return None, None, grad_value, None, grad_scale
    return spmm(entering, ones, grad_e), spmm(leaving, ones, grad_e), grad_value, grad_e, grad_scale


class _GatedSum(torch.autograd.Function):
    """The sum in plain torch."""

    @staticmethod
    def forward(
        ctx: Any,
        target: Tensor,
        source: Tensor,
        value: Tensor,
        edge: Tensor,
        scale: Tensor | None,
        edge_index: Tensor,
        patterns: tuple[Pattern, Pattern],
    ) -> tuple[Tensor, Tensor]:
        entering, _ = patterns
        # Arrays with one row per edge are reused, because touching new memory costs more than the arithmetic.
        e, work = target.index_select(0, edge_index[1]), source.index_select(0, edge_index[0])
        gate = torch.sigmoid(e.add_(work).add_(edge))
        if scale is not None:
            gate.mul_(scale)
        total = sum_rows(entering, gate).add_(_EPS)
        torch.index_select(value, 0, edge_index[0], out=work).mul_(gate)
        out = sum_rows(entering, work).div_(total)
        ctx.save_for_backward(e, value, scale, total, out)
        ctx.edge_index, ctx.patterns = edge_index, patterns
        ctx.set_materialize_grads(False)
        return out, e

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_e: Tensor | None) -> tuple[Tensor | None, ...]:
        e, value, scale, total, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable_gradients(grad_out, grad_e, value, scale, e, ctx.patterns), None, None
        source, target = ctx.edge_index
        (entering, leaving), grad_value, grad_scale = ctx.patterns, None, None
        if grad_out is not None:
            # d out = Σ σ (value − out) / total for the change of σ, and dσ = σ (1 − σ / s) de.
            slope = grad_out / total
            gate, weighted = e.sigmoid(), slope.index_select(0, target)
            weighted.mul_(gate)
            own, work = value.index_select(0, source), out.index_select(0, target)
            own.sub_(work).mul_(weighted)
            if scale is not None:
                grad_scale = own.sum(1, keepdim=True)
                own.mul_(scale)
                weighted.mul_(scale)
            grad_value = sum_rows(leaving, weighted)
            own.addcmul_(own, gate, value=-1)
            grad_e = own if grad_e is None else own.add_(grad_e)
        if grad_e is None:
            return (None,) * 7
        grad_target = sum_rows(entering, grad_e)
        grad_source = sum_rows(leaving, grad_e)
        return grad_target, grad_source, grad_value, grad_e, grad_scale, None, None
