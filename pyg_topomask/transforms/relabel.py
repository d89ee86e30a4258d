"""Copies of a graph whose nodes and edges come in another order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.products.factors import FAR_NODES, mean_distance, nearby_order
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import check_one_graph, edges_of, num_nodes_of, select_rows


class RelabelNodes(GraphTransform):
    """Number the nodes of a large graph so that neighbours have near numbers, and lie near each other in memory.

    The order is that of reverse Cuthill-McKee, by SciPy, on the edges in both directions. It moves all attributes that
    have a row for each node (``x``, ``y``, masks of splits), walks, hops, trees and other attributes with ``index`` in
    their name, and tables of pairs (``pair_…``, ``attn_bias``). Edges and their attributes are sorted by their ends.
    Masks that read the order of the nodes (causal, Toeplitz, low rank without positions) see another one.

    Adds to the ``Data`` ``original_id`` ``[N]``, int64, the old number of each node:
    ``out[data.original_id.argsort()]`` are outputs in the old order.

    Cost: O(N + E log E). Use it once, such as ahead of `AddRandomWalks`, for graphs of more than about 10,000 nodes
    whose numbers say nothing about their place: ``topomask advise`` says whether that is so.

    Raises:
        ValueError: If the graph is a batch, a grid (``grid_shape``), or has ``adj_t`` in place of ``edge_index``.
        TypeError: If the graph is a ``HeteroData``.
    """

    adds = ("original_id",)

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        return [_relabelled(graph) for graph in graphs]


def _relabelled(data: Data) -> dict[str, Any]:
    num_nodes = num_nodes_of(data)
    check_one_graph(data, "RelabelNodes")
    edges, _ = edges_of(data)
    for name, instead in {"grid_shape": "a grid has its own order", "adj_t": "add it after RelabelNodes"}.items():
        if name in data:
            raise ValueError(f"RelabelNodes cannot move {name!r} of the graph: {instead}")
    pattern, _ = Pattern.merge(*edges.cpu(), num_nodes, num_nodes)
    perm = nearby_order(pattern).to(edges.device) if num_nodes else edges.new_empty(0)  # SciPy wants a node
    row, col = perm.argsort()[edges]
    moved = permute(data, perm, (row * num_nodes + col).argsort(stable=True))
    return {**moved.to_dict(), "original_id": moved.get("original_id", perm)}


def far_apart(data: Data) -> str:
    """One line if `RelabelNodes` is worth while: neighbours lie far apart in memory and can be near; else empty."""
    bare = Data(edge_index=edges_of(data)[0].cpu(), num_nodes=num_nodes_of(data))
    given, near = (mean_distance(*graph.edge_index) for graph in (bare, RelabelNodes()(bare.clone())))
    if given <= FAR_NODES or near >= given / 2:
        return ""
    return (
        f"The numbers of neighbours are {given:,.0f} apart on average. transforms.RelabelNodes makes that {near:,.0f}, "
        "so that they lie near each other in memory: apply it once, when the data are made."
    )


def tables_of(data: Data, column: str = "index") -> tuple[str, ...]:
    """Prefixes of the attributes of tables with that column: ``"length"``, walks and trees; ``"load"``, walks."""
    names = (key.removesuffix("_size") for key in data.to_dict() if key.endswith("_size"))
    return tuple(f"{name}_" for name in names if f"{name}_index" in data and f"{name}_{column}" in data)


def permute(data: Data, perm: Tensor, edge_order: Tensor | None = None) -> Data:
    """Copy of a graph whose node ``i`` is the old node ``perm[i]``, so that its features are ``x[perm]``.

    Every attribute with ``index`` in its name is relabelled, including walk tables, and every attribute with one row
    per node, or per pair of nodes, is reordered. A batch must keep its graphs in order; permute nodes within them
    (`pyg_topomask.testing.block_permutation`).

    Args:
        data: The graph.
        perm: Old number of each node, shape ``[N]``.
        edge_order: Old number of each edge, shape ``[E]``; edges stay in their order if :obj:`None`.
    """
    moved, label = data.clone(), perm.argsort()  # the latter is the new number of each old node
    tables = tables_of(data)
    for key, value in data:
        is_tensor = isinstance(value, Tensor) and value.dim() > 0
        if is_tensor and "index" in key:
            moved[key] = label[torch.as_tensor(value).long()].to(value.dtype)
        elif is_tensor and key.startswith(("pair_", "attn_bias")) and len(value) == len(perm) ** 2:
            moved[key] = value.unflatten(0, (len(perm), len(perm)))[perm][:, perm].flatten(0, 1)
        elif key == "ptr" or (key.startswith(tables) and key.endswith(("_length", "_load", "_count"))):
            continue  # which stays, or a column of a table, in the order of its index
        elif data.is_node_attr(key):
            moved[key] = select_rows(value, perm)
        elif edge_order is not None and data.is_edge_attr(key):
            moved[key] = select_rows(value, edge_order)
    if edge_order is not None:
        moved.edge_index = moved.edge_index[:, edge_order]
    return moved
