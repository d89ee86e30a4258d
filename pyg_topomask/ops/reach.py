"""How far a mask sees: the share of its mass by distance."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.attention.mask import rows_of
from pyg_topomask.ops.csr import check_edges, edge_tensors, stored_edges
from pyg_topomask.ops.sparse import Pattern, spmm


@torch.no_grad()
def reach(mask: Any, graph: Data, max_hops: int = 16, num_rows: int = 256) -> Tensor:
    r"""Share of a mask's mass by distance: how much of :math:`\sum_j |M_{ij}|` lies 0, 1, 2, … hops from node i.

    The shares are means over the rows with entries. Distances follow edges from i to j. With the mask ``OnesOperator``,
    they are the shares of unmasked attention. Cost: a product of the mask with ``num_rows`` columns.

    Args:
        mask: A mask operator, or a mask module, which is called on the graph.
        graph: The graph or batch, with the attributes that the mask needs.
        max_hops: ``K``, the largest distance that is told apart.
        num_rows: Number of rows, evenly spread over the nodes; all if there are fewer. 256 by default, enough for a
            share to be known to a few hundredths.

    Returns:
        Shares at 0, 1, … K hops, and beyond K hops or out of reach: ``[K + 2]``, or ``[H, K + 2]`` for one mask per
        head; float64. They add up to 1; they are 0 for a mask without entries.

    Raises:
        TypeError: If a number is not an integer, or there is no mask.
        ValueError: If a number is out of range, or the edges or the mask do not fit the graph.
    """
    max_hops, num_rows = check_integer("max_hops", max_hops, 0), check_integer("num_rows", num_rows, 1)
    if mask is None:
        raise TypeError("'mask' must be a mask (got None); that of unmasked attention is OnesOperator(batch)")
    operator = mask(graph) if callable(mask) else mask
    num_nodes = int(graph.num_nodes or 0)
    if operator.num_nodes != num_nodes:
        raise ValueError(
            f"the mask is for {operator.num_nodes} nodes, but the graph has {num_nodes}; give the graph of the mask"
        )
    device = operator.device
    rows = torch.arange(0, num_nodes, -(-num_nodes // num_rows) or 1, device=device)
    heads = operator.heads
    if rows.numel() == 0:
        return torch.zeros((max_hops + 2,) if heads is None else (heads, max_hops + 2), dtype=torch.float64)
    mass = rows_of(operator, rows).abs().double()
    by_hop = _hops(graph, (torch.arange(num_nodes, device=device)[:, None] == rows).float(), max_hops)
    shares = torch.stack([(mass * (at if heads is None else at[:, None])).sum(0) for at in by_hop], -1)
    total = shares.sum(-1, keepdim=True)
    return (shares / torch.where(total > 0, total, 1)).sum(-2) / (total > 0).sum(-2).clamp(min=1)


def mean_hops(shares: Tensor) -> Tensor:
    """Mean number of hops of shares ``[K + 2]`` or ``[H, K + 2]``, in which more than K count as K + 1."""
    return (shares * torch.arange(shares.size(-1), device=shares.device)).sum(-1)


def _hops(graph: Data, seen: Tensor, max_hops: int) -> list[Tensor]:
    """Whether a node is 0, 1, … hops, or more, from the node of each column: boolean, each ``[N, C]``."""
    edge_index, _ = edge_tensors(stored_edges(graph))
    check_edges(edge_index, len(seen), None)
    into, _ = Pattern.merge(edge_index[1], edge_index[0], len(seen), len(seen))
    ones, found = seen.new_ones(into.nnz), [seen > 0]
    for _ in range(max_hops):
        wider = (spmm(into, ones, seen) + seen > 0).float()
        found.append((wider > 0) & (seen == 0))
        seen = wider
    return [*found, seen == 0]
