"""Pooling of nodes to graphs."""

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from pyg_topomask.nn.graph_attributes import check_planned
from pyg_topomask.ops.segment import segments

POOLS = {"mean": global_mean_pool, "add": global_add_pool, "max": global_max_pool}


def count_graphs(graph: Data | None, batch: Tensor | None) -> int:
    """Number of graphs in a batch; ``graph`` also counts empty graphs at the end, which ``batch`` cannot show.

    Raises:
        TypeError: If ``batch`` is no tensor, such as the graph in its place.
        ValueError: If the batch is padded, and there is no plan.
    """
    if batch is not None and not isinstance(batch, Tensor):
        raise TypeError(
            f"'batch' must be the graph of each node, [N] (got {type(batch).__name__}): give a graph by name, graph="
        )
    check_planned(graph)
    ptr = None if graph is None else graph.get("ptr")
    if batch is not None and ptr is not None:
        return ptr.numel() - 1
    num_graphs = getattr(graph, "num_graphs", None) if batch is not None else 1
    return segments(batch).num_graphs if num_graphs is None else num_graphs


def pool_nodes(x: Tensor, batch: Tensor | None, num_graphs: int, pool: str) -> Tensor:
    """Mean, sum or maximum over each graph's nodes, ``[N, C] → [B, C]``; zero for a graph without nodes."""
    batch = x.new_zeros(x.size(0), dtype=torch.long) if batch is None else batch
    return POOLS[pool](x, batch.long(), num_graphs)
