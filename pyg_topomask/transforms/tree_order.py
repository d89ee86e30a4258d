"""A spanning forest of a graph, for masks of trees."""

from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice
from pyg_topomask.ops.spanning_forest import spanning_forest, undirected_links
from pyg_topomask.transforms.graph_input import edge_lengths
from pyg_topomask.transforms.joined import JoinedTransform, join_edges

METHODS = ("breadth_first", "minimum")


class AddTreeOrder(JoinedTransform):
    """Add a spanning forest, in the order of its depth, for :class:`~pyg_topomask.nn.ForestMask` and
    :class:`~pyg_topomask.nn.TreeMask`.

    Every connected component gets a spanning tree. The root is the node with the most neighbours, the first one if
    there are several. A graph without cycles is its own spanning forest. On other graphs, distances in the tree are
    upper bounds on those in the graph. Edges count in both directions; self loops are ignored.

    Adds to the ``Data``, under PyG's collation rules:

    - ``tree_index`` ``[2, N]``, int32: each node and its parent, sorted by depth; a root is its own parent
    - ``tree_length`` ``[N]``, float: length of the edge to the parent, in the same order; 0 for a root
    - ``tree_size``: the number of nodes that the trees were made for. PyG's samplers and ``subgraph`` copy
      ``tree_index`` unchanged, so masks compare this number with the graph. Add the transform after sampling.

    Cost: O(N + E log E).

    Args:
        method: ``"breadth_first"``: the tree of a breadth-first search, which keeps the distances to the root. It is
            the default since it is the shallowest. ``"minimum"``: the tree of the smallest total length.
        length: Name of an edge attribute ``[E]``, ≥ 0, with the lengths of the edges. All are 1 if :obj:`None`.

    Raises:
        ValueError: If a setting is unknown, ``"minimum"`` has no lengths, or the lengths of a graph do not fit.
        TypeError: If the graph is a ``HeteroData``.
    """

    adds = ("tree_index", "tree_length", "tree_size")

    def __init__(self, method: str = "breadth_first", length: str | None = None) -> None:
        check_choice("method", method, METHODS)
        if method == "minimum" and length is None:
            raise ValueError("method 'minimum' needs 'length', the name of the edge attribute with the lengths")
        self.method, self.length = method, length

    def of_group(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        joined = join_edges(graphs)
        ptr, num_nodes = joined.ptr.cpu(), int(joined.ptr[-1])
        lengths = torch.cat([edge_lengths(graph, self.length, graph.num_edges) for graph in graphs])
        links = undirected_links(joined.edge_index, num_nodes, lengths)
        rank = links.length.argsort(stable=True).argsort() if self.method == "minimum" else None
        forest = spanning_forest(links, num_nodes, rank)
        graph_of_node = torch.repeat_interleave(ptr.diff())
        order = forest.order[graph_of_node[forest.order].argsort(stable=True)]
        parent = torch.where(forest.parent < 0, torch.arange(num_nodes), forest.parent)
        index = torch.stack([order, parent[order]]) - ptr[graph_of_node]  # the order keeps the graphs in place
        sizes, device = ptr.diff().tolist(), joined.edge_index.device
        columns = index.int().to(device).split(sizes, 1), forest.length[order].to(device).split(sizes)
        return [
            {"tree_index": pairs.clone(), "tree_length": length.clone(), "tree_size": size}
            for pairs, length, size in zip(*columns, sizes)
        ]
