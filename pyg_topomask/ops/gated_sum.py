"""Sums over the edges of each node, weighted by gates: the aggregation of `GatedGCN`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.edge_sum import incidence, sum_rows
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.second_derivatives import gradients_in_torch
from pyg_topomask.ops.sparse import Pattern

# Keeps the normalised sum finite if every gate is closed, as in GraphGPS.
_EPS = 1e-6


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
    patterns = incidence(edge_index, value.size(0))
    if torch.compiler.is_compiling() or loader.is_transformed():
        return _plain_sum(target, source, value, edge, scale, edge_index, patterns)
    return _GatedSum.apply(target, source, value, edge, scale, edge_index, patterns)


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


def _to_edges(x: Tensor, end: Tensor, pattern: Pattern) -> Tensor:
    """Rows of nodes at one end of each edge; ``pattern`` holds the edges of each node at that end."""
    return x.index_select(0, end) if loader.is_transformed() else _Moved.apply(x, end, pattern, False)


def _to_nodes(x: Tensor, end: Tensor, pattern: Pattern) -> Tensor:
    """Sum over the edges of each node, the adjoint of `_to_edges`. Transforms know only torch's own operations."""
    if loader.is_transformed():
        return x.new_zeros(pattern.num_rows, x.size(1)).index_add(0, end, x)
    return _Moved.apply(x, end, pattern, True)


class _Moved(torch.autograd.Function):
    """Gradients are sums of sorted segments; those of plain indexing are added in any order on several threads."""

    @staticmethod
    def forward(x: Tensor, end: Tensor, pattern: Pattern, to_nodes: bool) -> Tensor:
        return sum_rows(pattern, x) if to_nodes else x.index_select(0, end)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rest = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        end, pattern, to_nodes = ctx.rest
        return _Moved.apply(grad, end, pattern, not to_nodes), None, None, None


def _plain_sum(
    target: Tensor,
    source: Tensor,
    value: Tensor,
    edge: Tensor,
    scale: Tensor | None,
    edge_index: Tensor,
    patterns: tuple[Pattern, Pattern],
) -> tuple[Tensor, Tensor]:
    """`gated_sum` from its definition, for ``torch.compile``, transforms of `torch.func` and forward mode."""
    (sources, targets), (entering, leaving) = edge_index, patterns
    e = _to_edges(target, targets, entering) + _to_edges(source, sources, leaving) + edge
    return _sum_of_edges(e, value, scale, edge_index, patterns), e


def _sum_of_edges(
    e: Tensor, value: Tensor, scale: Tensor | None, edge_index: Tensor, patterns: tuple[Pattern, Pattern]
) -> Tensor:
    (sources, targets), (entering, leaving) = edge_index, patterns
    gate = e.sigmoid() if scale is None else e.sigmoid() * scale
    total = _to_nodes(gate, targets, entering) + _EPS
    return _to_nodes(gate * _to_edges(value, sources, leaving), targets, entering) / total


class _GatedSum(torch.autograd.Function):
    """The same sum, which keeps one array with a row per edge, and reuses such arrays.

    Touching new memory costs more than the arithmetic: a training step of GatedGCN takes 0.93 of the time.
    """

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
        (sources, targets), (entering, _) = edge_index, patterns
        e, work = target.index_select(0, targets), source.index_select(0, sources)
        gate = torch.sigmoid(e.add_(work).add_(edge))
        if scale is not None:
            gate.mul_(scale)
        total = sum_rows(entering, gate).add_(_EPS)
        torch.index_select(value, 0, sources, out=work).mul_(gate)
        out = sum_rows(entering, work).div_(total)
        ctx.save_for_backward(e, value, scale, total, out)
        ctx.edge_index, ctx.patterns = edge_index, patterns
        ctx.set_materialize_grads(False)
        return out, e

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_e: Tensor | None) -> tuple[Tensor | None, ...]:
        e, value, scale, total, out = ctx.saved_tensors
        (sources, targets), (entering, leaving) = ctx.edge_index, ctx.patterns
        own: Tensor | None = None  # gradient of e because of `out`
        grad_value = grad_scale = None
        if grad_out is not None and torch.is_grad_enabled():
            needed = [x is not None and x.requires_grad for x in (e, value, scale)]
            given = partial(_sum_of_edges, edge_index=ctx.edge_index, patterns=ctx.patterns)
            own, grad_value, grad_scale = gradients_in_torch(given, (e, value, scale), needed, grad_out)
        elif grad_out is not None:
            # d out = Σ σ (value − out) / total for the change of σ, and dσ = σ (1 − σ / s) de.
            slope = grad_out / total
            gate, weighted = e.sigmoid(), slope.index_select(0, targets)
            weighted.mul_(gate)
            own, work = value.index_select(0, sources), out.index_select(0, targets)
            own.sub_(work).mul_(weighted)
            if scale is not None:
                grad_scale = own.sum(1, keepdim=True)
                own.mul_(scale)
                weighted.mul_(scale)
            grad_value = sum_rows(leaving, weighted)
            own.addcmul_(own, gate, value=-1)
        if own is not None:
            grad_e = own if grad_e is None else own + grad_e
        if grad_e is None:
            return None, None, grad_value, None, grad_scale, None, None
        grad_target = _to_nodes(grad_e, targets, entering)
        grad_source = _to_nodes(grad_e, sources, leaving)
        return grad_target, grad_source, grad_value, grad_e, grad_scale, None, None
