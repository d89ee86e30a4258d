r"""Generators ``T`` of heat kernels :math:`\exp(-\lambda T)`, and intervals that contain their eigenvalues.

The kernel is block-diagonal over the connected components. Each component has its own interval, so that no result
depends on the other graphs of a batch.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyg_topomask.checks import holds
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import Pattern, on_host, spmm, to_numpy

LAPLACIANS = ("combinatorial", "normalized", "random_walk", "adjacency")

# Steps of the power iteration for the largest eigenvalue.
_POWER_STEPS = 64


class EdgePattern(NamedTuple):
    """Positions of the edges, of their reversed copies and of the diagonal, and the connected components."""

    pattern: Pattern
    edge: Tensor
    """Index of the entry of each edge, shape ``[E]``."""
    diagonal: Tensor
    """Index of the diagonal entry of each node, shape ``[N]``."""
    component: Tensor
    """Connected component of each node, shape ``[N]``."""
    num_components: int


class Generator(NamedTuple):
    r"""A generator :math:`T = R S R^{-1}` with ``S`` symmetric and ``R`` diagonal."""

    pattern: Pattern
    value: Tensor
    """Entries of ``S``, scaled and shifted so that the eigenvalues lie in [−1, 1]; shape ``[nnz]``, float64."""
    root: Tensor | None
    """Diagonal of ``R``, shape ``[N]``; :obj:`None` if ``R`` is the identity."""
    interval: Tensor
    """Index of the interval of each node, shape ``[N]``."""
    bounds: np.ndarray
    """Float64, shape ``[4, U]``: lower and upper ends of the intervals, which hold all eigenvalues of ``S``; upper
    bounds on the smallest eigenvalues; and upper bounds on the condition number of ``R`` within a component.
    """


@once_per_batch
@on_host
def edge_pattern(edge_index: Tensor, num_nodes: int) -> EdgePattern:
    """Pattern of a checked edge list, built once per batch."""
    row, col = edge_index.long()
    node = torch.arange(num_nodes, device=row.device)
    pattern, entry = Pattern.merge(torch.cat([row, node, col]), torch.cat([col, node, row]), num_nodes, num_nodes)
    links = pattern.scipy(np.ones(pattern.nnz, np.int8))
    count, label = connected_components(links, False) if num_nodes else (0, [])
    component = torch.as_tensor(label, dtype=torch.int64, device=row.device)
    edge, diagonal, _ = entry.split([row.numel(), num_nodes, row.numel()])
    return EdgePattern(pattern, edge.clone(), diagonal.clone(), component, int(count))


@once_per_batch
@on_host
def heat_generator(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None, laplacian: str) -> Generator:
    """Generator of an edge list, built once per batch unless the weights are learned.

    The intervals have no gradient.

    Args:
        edge_index: Edges, shape ``[2, E]``.
        num_nodes: ``N``.
        edge_weight: Weights ``[E]``; one per edge if :obj:`None`.
        laplacian: One of `LAPLACIANS`.

    Raises:
        TypeError: As `check_edges`.
        ValueError: As `check_edges`; also if the weights are not symmetric, or one is negative.
    """
    check_edges(edge_index, num_nodes, edge_weight)
    edges = edge_pattern(edge_index, num_nodes)
    pattern, diagonal, row = edges.pattern, edges.diagonal, edges.pattern.row.long()
    weight = edges.edge.new_ones(edges.edge.numel()) if edge_weight is None else edge_weight
    adj = torch.zeros(pattern.nnz, dtype=torch.float64, device=row.device).index_add(0, edges.edge, weight.double())
    eps = torch.finfo(torch.float64 if edge_weight is None else edge_weight.dtype).eps
    _check_weights(pattern, adj.detach(), eps)
    strength = adj.new_zeros(num_nodes).index_add(0, row, adj)
    value, root = -adj, None
    if laplacian in ("normalized", "random_walk"):
        root = torch.where(strength > 0, strength, 1).sqrt()
        value = value / (root.index_select(0, row) * root.index_select(0, pattern.col.long()))
        strength = (strength > 0).double()
        root = root if laplacian == "random_walk" else None
    if laplacian != "adjacency":
        value = value.index_add(0, diagonal, strength)
    bounds, interval, scale, centre = _intervals(adj, value, root, edges, laplacian)
    value = (value * scale.index_select(0, row)).index_add(0, diagonal, -centre)
    return Generator(pattern, value, root, interval, bounds)


@torch.no_grad()
def _intervals(
    adj: Tensor, value: Tensor, root: Tensor | None, edges: EdgePattern, laplacian: str
) -> tuple[np.ndarray, Tensor, Tensor, Tensor]:
    """The distinct `Generator.bounds` of components; the interval of each node, and its scale and centre, ``[N]``."""
    ends = _interval(edges, adj.detach(), value.detach(), laplacian)
    condition = torch.ones_like(ends[0]) if root is None else _condition(edges, root.detach())
    bounds, index = torch.unique(torch.stack([*ends, condition]), dim=1, return_inverse=True)
    low, high = bounds[:2]
    scale = torch.where(high > low, 2 / (high - low), 0)
    centre = torch.where(high > low, (high + low) / (high - low), 1)
    interval = index.index_select(0, edges.component)
    return to_numpy(bounds), interval, scale.index_select(0, interval), centre.index_select(0, interval)


def _check_weights(pattern: Pattern, adj: Tensor, eps: float) -> None:
    """Refuse weights for which the error of a heat kernel is not known."""
    if not holds((adj >= 0).all(), "a heat mask needs edge weights of at least 0"):
        raise ValueError(f"a heat mask needs edge weights of at least 0 (got {float(adj.min()):.3g})")
    other = adj.index_select(0, pattern.transposed[1])
    differ = (adj - other).abs() > 16 * eps * (adj + other)
    if not holds(~differ.any(), "a heat mask needs an undirected graph"):
        entry = int(differ.nonzero()[0])
        i, j = int(pattern.row[entry]), int(pattern.col[entry])
        raise ValueError(
            f"a heat mask needs an undirected graph, but edges {i} → {j} and {j} → {i} weigh {float(adj[entry]):.3g} "
            f"and {float(other[entry]):.3g}; use torch_geometric.utils.to_undirected"
        )


def _interval(edges: EdgePattern, adj: Tensor, value: Tensor, laplacian: str) -> tuple[Tensor, Tensor, Tensor]:
    """Ends of the interval of each component, and an upper bound on its smallest eigenvalue."""
    zero = adj.new_zeros(edges.num_components)
    row, col = edges.pattern.row.long(), edges.pattern.col.long()
    if laplacian == "adjacency":
        low, high = _largest_eigenvalue(edges, adj)
        return -high, high, -low
    own = value.index_select(0, edges.diagonal)
    links = (row != col) & (adj > 0)  # Anderson and Morley: the largest D_i + D_j bounds the spectrum of D − A
    both = torch.where(links, own.index_select(0, row) + own.index_select(0, col), 0)
    high = _largest(both, edges.component.index_select(0, row), edges.num_components)
    return zero, high * (1 + 1e-12) if laplacian == "combinatorial" else 2 * (high > 0).double(), zero


def _largest_eigenvalue(edges: EdgePattern, adj: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on the largest eigenvalue of each component of ``A ≥ 0``.

    A positive vector ``v`` gives both bounds (Collatz and Wielandt): the eigenvalue is between the Rayleigh quotient
    and the largest :math:`(A v)_i / v_i`. A power iteration with a shift makes the bounds converge.
    """
    component, zero = edges.component, adj.new_zeros(edges.num_components)
    low, high, vector = zero, torch.full_like(zero, torch.inf), adj.new_ones(component.numel())
    for _ in range(_POWER_STEPS):
        image = spmm(edges.pattern, adj, vector[:, None])[:, 0]
        high = torch.minimum(high, _largest(image / vector, component, len(zero)))
        dots, norms = (zero.index_add(0, component, vector * other) for other in (image, vector))
        low = torch.maximum(low, dots / norms)
        shift = (low * high).sqrt()  # between the extremes, to damp the eigenvalue −λ of a bipartite component as well
        vector = image + torch.where(shift > 0, shift, 1).index_select(0, component) * vector
        vector = vector / _largest(vector, component, len(zero)).index_select(0, component)
    return low, high * (1 + 1e-12)


def _condition(edges: EdgePattern, root: Tensor) -> Tensor:
    """Condition number of a positive diagonal within each component, up to the next power of two."""
    group, count = edges.component, edges.num_components
    return torch.exp2(torch.log2(_largest(root, group, count) * _largest(1 / root, group, count)).ceil())


def _largest(x: Tensor, group: Tensor, count: int) -> Tensor:
    """Largest of the numbers ``x ≥ 0`` in each group."""
    return x.new_zeros(count).scatter_reduce(0, group, x, "amax")
