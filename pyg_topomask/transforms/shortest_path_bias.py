"""Indices of Graphormer's attention bias: distances, degrees and edges along shortest paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.pair_encodings import check_pair_sizes, shortest_path_lengths, types_along_paths
from pyg_topomask.transforms.encoding import Encoding, split_rows
from pyg_topomask.transforms.graph_input import edges_of


class AddShortestPathBias(Encoding):
    r"""Add shortest-path distances, degrees and optionally the edges along shortest paths to a graph.

    Row ``i N + j`` of a ``pair_`` attribute is the pair (i, j). PyG's collation concatenates the tables of a batch
    without padding. Adds:

    - ``pair_shortest_path`` ``[N²]``, int16: hops from i to j, at most ``num_spatial_types - 1``; ``num_spatial_types``
      if there is no path
    - ``shortest_path_in_degree``, ``shortest_path_out_degree`` ``[N]``, int64: number of edges, without repeated ones
    - with ``paths``, ``pair_shortest_path_types`` ``[N², num_spatial_types - 1]``, int16: type of each edge along a
      shortest path from i to j, −1 after its end. If there are several shortest paths, every call chooses the same
      one.

    Paths follow edges in their direction and count hops. Weights do not matter: an edge of weight 0 is an edge.

    Reference: Ying et al., *Do Transformers Really Perform Badly for Graph Representation?*, NeurIPS 2021,
    arXiv:2106.05234, Section 3.1; distances beyond the largest share a type, as in GraphGPS's GraphormerBias.

    Args:
        num_spatial_types: Number of different distances, including 0.
        paths: Whether to store the types of edges, which are read from ``edge_attr`` (whole numbers ≥ 0 of shape
            ``[E]`` or ``[E, 1]``).
        pairs: Whether to store the attributes of pairs; if false, only degrees (GraphGPS's ``node_degrees_only``).

    Raises:
        TypeError: If ``num_spatial_types`` is not an integer.
        ValueError: If ``num_spatial_types`` is out of range. When called, if a graph has more than 8192 nodes, is a
            batch, or has edges without a single type.
    """

    adds = ("pair_shortest_path", "pair_shortest_path_types", "shortest_path_*_degree")
    reads = ("edge_index", "adj_t", "num_nodes", "edge_attr")
    needs_one_graph = True

    def __init__(self, num_spatial_types: int = 20, paths: bool = False, pairs: bool = True) -> None:
        num_spatial_types = check_integer("num_spatial_types", num_spatial_types, 2)
        if num_spatial_types >= 2**15:
            raise ValueError(f"'num_spatial_types' must be below 32768 (got {num_spatial_types})")
        if paths and not pairs:
            raise ValueError("'paths' need 'pairs', because paths connect pairs")
        self.num_spatial_types, self.paths, self.pairs = num_spatial_types, paths, pairs

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        incoming = torch.bincount(batch.csr.col, minlength=batch.num_nodes)
        degrees = zip(split_rows(incoming, batch.sizes), split_rows(batch.csr.degree, batch.sizes))
        added = [{"shortest_path_in_degree": into, "shortest_path_out_degree": out} for into, out in degrees]
        if not self.pairs:
            return added
        check_pair_sizes(batch.sizes, "shortest-path biases")
        hops, before = shortest_path_lengths(batch)
        kinds = torch.where(hops < 0, self.num_spatial_types, hops.clamp(max=self.num_spatial_types - 1)).short()
        squares = [size * size for size in batch.sizes]
        for position, part in enumerate(split_rows(kinds, squares)):
            added[position]["pair_shortest_path"] = part
        if self.paths:
            for position, (graph, lengths) in enumerate(zip(graphs, hops.split(squares))):
                size = batch.sizes[position]
                table = lengths.view(size, size).numpy()
                types = types_along_paths(table, before[position], _edge_types(graph, size), self.num_spatial_types - 1)
                added[position]["pair_shortest_path_types"] = torch.from_numpy(types).flatten(0, 1)
        return added


def _edge_types(graph: Data, size: int) -> np.ndarray:  # [n, n]
    edge_index = edges_of(graph)[0].cpu()
    kind = graph.edge_attr
    if kind is None or kind.is_floating_point() or kind.numel() != edge_index.size(1):
        got = "none" if kind is None else f"{list(kind.shape)}, {kind.dtype}"
        raise ValueError(f"'paths' need one type per edge, 'edge_attr' of whole numbers, shape [E] (got {got})")
    kind = kind.cpu().view(-1)
    if kind.numel() > 0 and (int(kind.min()) < 0 or int(kind.max()) >= 2**15):
        raise ValueError(f"edge types must be from 0 to 32767 (got {int(kind.min())} to {int(kind.max())})")
    types = np.full((size, size), -1, dtype=np.int16)
    types[tuple(edge_index.numpy())] = kind.numpy()
    return types
