"""A spanning forest of a graph, for masks of trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.ops.csr import to_csr
from pyg_topomask.ops.hashing import GOLDEN, draw_seeds, hash_graphs, mix
from pyg_topomask.ops.spanning_forest import Links, spanning_forest, undirected_links
from pyg_topomask.transforms.graph_input import edge_lengths
from pyg_topomask.transforms.joined import JoinedEdges, JoinedTransform, join_edges

METHODS = ("breadth_first", "minimum", "random")


class AddTreeOrder(JoinedTransform):
    """Add a spanning forest, in the order of its depth, for :class:`~pyg_topomask.nn.ForestMask` and
    :class:`~pyg_topomask.nn.TreeMask`.

    Every connected component gets a spanning tree. The root is the node with the most neighbours, the first one if
    there are several. A graph without cycles is its own spanning forest. On other graphs, distances in the tree are
    upper bounds on those in the graph. Edges count in both directions; self loops are ignored.

    Adds to the ``Data``, under PyG's collation rules:

    - ``tree_index`` ``[2, N]``, int32: each node and its parent, sorted by depth; a root is its own parent
    - ``tree_length`` ``[N]``, float: length of the edge to the parent, in the same order; 0 for a root
    - ``tree_is_forest``: whether the graph had no cycle, so that it is its own spanning forest
    - ``tree_size``: the number of nodes that the trees were made for. PyG's samplers and ``subgraph`` copy
      ``tree_index`` unchanged, so masks compare this number with the graph. Add the transform after sampling.

    Cost: O(N + E log E).

    Args:
        method: ``"breadth_first"``: the tree of a breadth-first search, which keeps the distances to the root. It is
            the default since it is the shallowest. ``"minimum"``: the tree of the smallest total length.
            ``"random"``: the minimum spanning tree of random lengths.
        length: Name of an edge attribute ``[E]``, ≥ 0, with the lengths of the edges. All are 1 if :obj:`None`.
        seed: Random trees depend only on (seed, graph), for any number of loader workers. With :obj:`None`, every call
            draws from torch's default generator.

    Raises:
        ValueError: If a setting is unknown, ``"minimum"`` has no lengths, or the lengths of a graph do not fit.
        TypeError: If the graph is a ``HeteroData``, or the seed is not an integer.
    """

    adds = ("tree_index", "tree_length", "tree_is_forest", "tree_size")

    def __init__(self, method: str = "breadth_first", length: str | None = None, seed: int | None = None) -> None:
        check_choice("method", method, METHODS)
        if method == "minimum" and length is None:
            raise ValueError("method 'minimum' needs 'length', the name of the edge attribute with the lengths")
        self.method, self.length = method, length
        self.seed = None if seed is None else check_integer("seed", seed)

    @property
    def draws(self) -> bool:
        """Whether the trees are random."""
        return self.method == "random"

    def of_group(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        joined = join_edges(graphs)
        ptr, num_nodes = joined.ptr.cpu(), int(joined.ptr[-1])
        num_edges = torch.bincount(
            torch.bucketize(joined.edge_index[0].cpu().contiguous(), ptr[1:], right=True), minlength=len(graphs)
        )
        lengths = torch.cat([edge_lengths(graph, self.length, n) for graph, n in zip(graphs, num_edges.tolist())])
        links = undirected_links(joined.edge_index, num_nodes, lengths)
        forest = spanning_forest(links, num_nodes, self._rank(links, joined))
        graph_of_node = torch.repeat_interleave(ptr.diff())
        order = forest.order[graph_of_node[forest.order].argsort(stable=True)]
        parent = torch.where(forest.parent < 0, torch.arange(num_nodes), forest.parent)
        index = torch.stack([order, parent[order]]) - ptr[graph_of_node]  # the order keeps the graphs in place
        num_links = torch.bincount(graph_of_node[links.low], minlength=len(graphs))
        num_trees = torch.bincount(graph_of_node[(forest.parent < 0).nonzero()[:, 0]], minlength=len(graphs))
        is_forest = (num_links == ptr.diff() - num_trees).tolist()
        sizes, device = ptr.diff().tolist(), joined.edge_index.device
        columns = zip(index.int().to(device).split(sizes, 1), forest.length[order].to(device).split(sizes))
        return [
            {
                "tree_index": pairs.clone(),
                "tree_length": length.clone(),
                "tree_is_forest": acyclic,
                "tree_size": size,
            }
            for (pairs, length), acyclic, size in zip(columns, is_forest, sizes)
        ]

    def _rank(self, links: Links, joined: JoinedEdges) -> Tensor | None:
        """Rank of each link, ``[L]``: the trees take low ranks first. None for a breadth-first search."""
        if self.method == "breadth_first":
            return None
        if self.method == "minimum":
            return links.length.argsort(stable=True).argsort()
        ptr, count = joined.ptr.cpu(), len(joined.ptr) - 1
        csr = to_csr(torch.stack([links.low, links.high]), int(ptr[-1]))
        seeds = draw_seeds(count) if self.seed is None else hash_graphs(csr, ptr, self.seed, 0)
        graph = torch.repeat_interleave(ptr.diff())[links.low]
        low, high = links.low - ptr[graph], links.high - ptr[graph]
        draws = mix(seeds[graph] + mix((low * ptr.diff()[graph] + high + 1) * GOLDEN))
        return draws.argsort(stable=True).argsort()
