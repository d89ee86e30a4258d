"""Pairs of nodes within a number of hops, for masks of distances."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer, warn_once
from pyg_topomask.ops.hops import hop_pairs
from pyg_topomask.transforms.graph_input import edge_lengths
from pyg_topomask.transforms.joined import JoinedTransform, join_edges, split_table
from pyg_topomask.typing import PerformanceWarning


class AddHops(JoinedTransform):
    """Add the pairs of nodes within a number of hops and their distance, for :class:`~pyg_topomask.nn.HopMask`.

    Distances follow edges in their direction: row i of a mask reads the nodes that i reaches.

    Adds to the ``Data``, under PyG's collation rules:

    - ``hop_index`` ``[2, P]``, int32: pairs (i, j), sorted; each node with itself is one
    - ``hop_length`` ``[P]``, int16: distance from i to j, in units of ``width``
    - ``hop_size``: the number of nodes that the pairs were found for. PyG's samplers and ``subgraph`` copy
      ``hop_index`` unchanged, so masks compare this number with the graph. Add the transform after sampling.

    Cost: a search from every node that ends at ``max_hops``; memory for P pairs, up to :math:`N^2`. On molecules, a
    node has 12 pairs within 4 hops and 29 within 8. On graphs with hubs, choose ``max_hops`` of 1 or 2: 8 hops are 5.4
    of the 7.3 million pairs of Cora, with which an epoch takes 3.6 s, and 0.4 s with 2 hops.

    Args:
        max_hops: Largest distance. 8 by default, as in :class:`~pyg_topomask.nn.HopMask`.
        length: Name of an edge attribute ``[E]``, ≥ 0, with the lengths of the edges. All are 1 if :obj:`None`.
        width: Unit in which distances are counted, for edges with lengths: a distance is rounded to the nearest
            multiple of it.

    Warns:
        PerformanceWarning: Once, if more than a quarter of all pairs of a graph with over 1,000 nodes are listed.

    Raises:
        TypeError: If ``max_hops`` is not an integer, or the graph is a ``HeteroData``.
        ValueError: If a setting is out of range, or the lengths of a graph do not fit.
    """

    adds: ClassVar[tuple[str, ...]] = ("hop_index", "hop_length", "hop_size")

    def __init__(self, max_hops: int = 8, length: str | None = None, width: float = 1.0) -> None:
        if not 0 < width < float("inf"):
            raise ValueError(f"'width' must be a positive number (got {width})")
        self.max_hops, self.length, self.width = check_integer("max_hops", max_hops, 0), length, float(width)
        if self.max_hops >= 2**15:
            raise ValueError(f"'max_hops' must be below 32768 (got {max_hops})")

    def of_group(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        joined, length = join_edges(graphs), None
        if self.length is not None:
            length = torch.cat([edge_lengths(graph, self.length, graph.num_edges) for graph in graphs])
        num_nodes = int(joined.ptr[-1])
        index, hops = hop_pairs(joined.edge_index, num_nodes, self.max_hops, length, self.width)
        tables = split_table(joined, index, hops.short())
        sizes = joined.ptr.diff().tolist()
        for size, pairs in zip(sizes, tables[0]):
            if size > 1000 and pairs.size(1) > size**2 / 4:
                warn_once(
                    "AddHops",
                    f"AddHops(max_hops={self.max_hops}) lists {pairs.size(1):,} of the {size**2:,} pairs of a graph: "
                    "time and memory grow with its square. Give AddHops and HopMask a smaller 'max_hops', such as 2",
                    PerformanceWarning,
                )
        return [
            {"hop_index": pairs, "hop_length": distance, "hop_size": size}
            for pairs, distance, size in zip(*tables, sizes)
        ]
