"""Copies of a graph whose nodes and edges come in another order."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Data


def permute(data: Data, perm: Tensor, edge_order: Tensor | None = None) -> Data:
    """Copy of a graph whose node ``i`` is the old node ``perm[i]``, so that its features are ``x[perm]``.

    Every attribute with ``index`` in its name is relabelled, including walk tables, and every attribute with one row
    per node is reordered. A batch must keep its graphs in order; permute nodes within them
    (`pyg_topomask.testing.block_permutation`).

    Args:
        data: The graph.
        perm: Old number of each node, shape ``[N]``.
        edge_order: Old number of each edge, shape ``[E]``; edges stay in their order if :obj:`None`.
    """
    moved, label = data.clone(), perm.argsort()  # the latter is the new number of each old node
    names = [key.removesuffix("_size") for key in data.to_dict() if key.endswith("_size")]
    tables = tuple(f"{name}_" for name in names if f"{name}_index" in data)
    for key, value in data.to_dict().items():
        if not isinstance(value, Tensor) or value.dim() == 0 or key == "ptr":
            continue
        if "index" in key:
            moved[key] = label[value.long()].to(value.dtype)
        elif key.startswith(tables) and not key.endswith("_diagonal"):
            continue  # a column of a table, in the order of its index
        elif data.is_node_attr(key):
            moved[key] = value[perm]
        elif edge_order is not None and data.is_edge_attr(key):
            moved[key] = value[edge_order]
    if edge_order is not None:
        moved.edge_index = moved.edge_index[:, edge_order]
    return moved
