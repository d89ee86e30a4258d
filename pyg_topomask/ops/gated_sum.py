"""Sums over the edges of each node, weighted by gates: the aggregation of `GatedGCN`."""

from torch import Tensor

from pyg_topomask.ops.edge_sum import incidence, sum_rows
from pyg_topomask.ops.functions import Linear
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

    for the edges :math:`j \to i`.

    Args:
        target, source, value: Per node, shape ``[N, C]``.
        edge: Per edge, shape ``[E, C]``.
        edge_index: Edges, shape ``[2, E]``.
        scale: Factor :math:`s` of each edge's gate, shape ``[E, 1]``; one if :obj:`None`.

    Returns:
        ``(out [N, C], e [E, C])``, differentiable in all but ``edge_index``.
    """
    (sources, targets), (entering, leaving) = edge_index, incidence(edge_index, value.size(0))
    e = _to_edges(target, targets, entering) + _to_edges(source, sources, leaving) + edge
    gate = e.sigmoid() if scale is None else e.sigmoid() * scale
    total = _to_nodes(gate, targets, entering) + _EPS
    return _to_nodes(gate * _to_edges(value, sources, leaving), targets, entering) / total, e


def _to_edges(x: Tensor, end: Tensor, pattern: Pattern) -> Tensor:
    """Rows of nodes at one end of each edge; ``pattern`` holds the edges of each node at that end."""
    return _Moved.of(x, end, pattern, False)


def _to_nodes(x: Tensor, end: Tensor, pattern: Pattern) -> Tensor:
    """Sum over the edges of each node, the adjoint of `_to_edges`."""
    return _Moved.of(x, end, pattern, True)


class _Moved(Linear):
    """Gradients are sums of sorted segments; those of plain indexing are added in any order on several threads."""

    @staticmethod
    def forward(x: Tensor, end: Tensor, pattern: Pattern, to_nodes: bool) -> Tensor:
        return sum_rows(pattern, x) if to_nodes else x.index_select(0, end)

    @staticmethod
    def adjoint(end: Tensor, pattern: Pattern, to_nodes: bool) -> tuple[Tensor, Pattern, bool]:
        return end, pattern, not to_nodes
