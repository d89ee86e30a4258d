"""Sums over the edges of each node, weighted by gates: the aggregation of `GatedGCN`.

On CPU, a compiled function (``native/gated/``) computes it in one pass over the edges, and the gradients in two.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.edge_sum import incidence, sum_rows
from pyg_topomask.ops.functions import Linear
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.sparse import Pattern

# Keeps the normalised sum finite if every gate is closed, as in GraphGPS.
_EPS = 1e-6


def gated_sum(nodes: Tensor, edge: Tensor, edge_index: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Sum of the sources' values over each node's edges, weighted by gates that are normalised channel by channel.

    .. math::
        e_{ij} &= \mathrm{target}_i + \mathrm{source}_j + \mathrm{edge}_{ij}, \qquad
        \sigma_{ij} = s_{ij} \, \mathrm{sigmoid}(e_{ij}) \\
        \mathrm{out}_i &= \mathrm{own}_i +
        \frac{\sum_j \sigma_{ij} \odot \mathrm{value}_j}{\sum_j \sigma_{ij} + 10^{-6}}

    for the edges :math:`j \to i`.

    Args:
        nodes: Own part, value, target and source of each node, side by side, shape ``[N, 4 C]``.
        edge: Per edge, shape ``[E, C]``.
        edge_index: Edges, shape ``[2, E]``.
        scale: Factor :math:`s` of each edge's gate, shape ``[E, 1]``; one if :obj:`None`.

    Returns:
        ``(out [N, C], e [E, C])``, differentiable in all but ``edge_index``.
    """
    entering, leaving = incidence(edge_index, nodes.size(0))
    patterns = entering.rowptr, entering.col, leaving.rowptr, leaving.col
    out, e = _gated_sum(nodes, edge, scale, edge_index.int(), *patterns)
    return out, e


class _GatedSum(CompiledOp):
    library, name = "gated", "gated_sum"
    arrays = ("nodes", "edge", "scale?", "ends", "in_first", "in_edge", "out_first", "out_edge")
    results = ("out", "e")
    differentiable = 3
    keeps_results = True
    work_per_thread = 2**18  # numbers of edges

    def shapes(self, nodes: Tensor, edge: Tensor, *rest: Any) -> list[tuple[int, ...]]:
        return [(nodes.size(0), edge.size(1)), tuple(edge.shape)]

    def work(self, nodes: Tensor, edge: Tensor, *rest: Any) -> int:
        return edge.numel()

    def twin(
        self, nodes: Tensor, edge: Tensor, scale: Tensor | None, ends: Tensor, *patterns: Tensor
    ) -> tuple[Tensor, Tensor]:
        own, value, target, source = nodes.chunk(4, 1)
        in_first, in_edge, out_first, out_edge = patterns
        (sources, targets), size = ends, (nodes.size(0), edge.size(0))
        entering = Pattern(None, in_edge, *size, rowptr=in_first)
        leaving = Pattern(None, out_edge, *size, rowptr=out_first)
        e = _Moved.of(target, targets, entering, False) + _Moved.of(source, sources, leaving, False) + edge
        gate = e.sigmoid() if scale is None else e.sigmoid() * scale
        total = _Moved.of(gate, targets, entering, True) + _EPS
        values = gate * _Moved.of(value, sources, leaving, False)
        return own + _Moved.of(values, targets, entering, True) / total, e

    def examples(self) -> Iterator[tuple[Any, ...]]:
        numbers = partial(torch.randn, dtype=torch.float64)
        for n, count, channels, scaled in (3, 5, 2, 1), (3, 4, 1, 0), (0, 0, 2, 0), (2, 0, 3, 1), (200, 700, 19, 1):
            ends = torch.randint(max(n, 1), (2, count), dtype=torch.int32)
            nodes, edge = numbers(n, 4 * channels), numbers(count, channels)
            entering, leaving = incidence(ends, n)
            scale = numbers(count, 1).sigmoid() if scaled else None
            yield nodes, edge, scale, ends, entering.rowptr, entering.col, leaving.rowptr, leaving.col


_gated_sum = _GatedSum()


class _Moved(Linear):
    """Rows of nodes at one end of each edge, or, with ``to_nodes``, sums over the edges of each node, its adjoint.

    Gradients are sums of sorted segments; those of plain indexing are added in any order on several threads.

    Args:
        end: Node at that end of each edge.
        pattern: The edges of each node at that end.
    """

    @staticmethod
    def forward(x: Tensor, end: Tensor, pattern: Pattern, to_nodes: bool) -> Tensor:
        return sum_rows(pattern, x) if to_nodes else x.index_select(0, end)

    @staticmethod
    def adjoint(end: Tensor, pattern: Pattern, to_nodes: bool) -> tuple[Tensor, Pattern, bool]:
        return end, pattern, not to_nodes
