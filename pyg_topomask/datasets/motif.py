"""Motif detection: does a random graph contain a given small graph?"""

from collections.abc import Callable

import numpy as np
import torch
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.datasets.synthetic import SyntheticDataset, both_ways, to_data
from pyg_topomask.transforms.grid_shape import grid_links

NUM_FEATURES = 5
CROSS_EDGES_PER_NODE = 0.4


def _ring(nodes: range) -> list[tuple[int, int]]:
    return [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]


def _grid(rows: int, cols: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in grid_links((rows, cols)).t().tolist()]


MOTIFS: dict[str, list[tuple[int, int]]] = {
    # three triangles, with one corner of each in a fourth triangle
    "caveman": [*_ring(range(3)), *_ring(range(3, 6)), *_ring(range(6, 9)), (2, 5), (5, 8), (2, 8)],
    "circle": _ring(range(10)),
    "grid": _grid(3, 3),
    "ladder": _grid(2, 5),
    "circular_ladder": [*_grid(2, 5), (4, 0), (9, 5)],
}
"""Undirected edges of each motif, its nodes numbered from 0 (9 or 10 of them)."""


class MotifDataset(SyntheticDataset):
    r"""Random graphs with a planted motif in every second one.

    Each graph consists of an Erdős–Rényi graph with ``num_nodes`` nodes and the motif's average degree, and a small
    graph, whose nodes come last. Random cross edges connect the two. The small graph is the motif itself if ``y = 1``,
    and an Erdős–Rényi graph with the motif's number of nodes and edges if ``y = 0``. Each cross edge exists with
    probability ``0.4 / num_nodes``, that is 0.004 at 100 nodes as in the authors' code; if none was drawn, one is added
    at a uniformly random position. The node feature contains the 5 largest degrees among a node's neighbours, in
    descending order, padded with zeros.

    All graphs of a data set have the same number of nodes, and both classes have the same distribution of the number of
    edges, so the label cannot be read from a size. (The authors remove isolated nodes, which only occur in the negative
    small graphs. Here they stay, so graphs may be disconnected and have isolated nodes.)

    Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
    arXiv:2107.07999, Section 5.1.1.

    Args:
        root: Folder of the processed file.
        motif: ``"caveman"``, ``"circle"``, ``"grid"``, ``"ladder"`` or ``"circular_ladder"``.
        num_graphs: Number of graphs; graph ``i`` is positive if ``i`` is odd. The default is the paper's.
        num_nodes: Nodes of the large random graph, at least 10. The default is the paper's.
        seed: Graph ``i`` depends only on ``(motif, num_nodes, seed, i)``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving.

    Shapes:
        - a graph has ``N = num_nodes + 9`` or ``num_nodes + 10`` nodes: ``x [N, 5]``, ``edge_index [2, E]`` (each
          edge both ways, sorted), ``y [1]``

    Units: degrees are numbers of neighbours.

    Raises:
        ValueError: If ``motif`` is unknown or a number is out of range.
        TypeError: If a number is not an integer.
    """

    def __init__(
        self,
        root: str,
        motif: str,
        num_graphs: int = 4096,
        num_nodes: int = 100,
        seed: int = 0,
        **transforms: Callable | None,
    ) -> None:
        check_choice("motif", motif, MOTIFS)
        num_nodes = check_integer("num_nodes", num_nodes, 10, "the random graph must be larger than the motif")
        self.motif, self.num_random_nodes = motif, num_nodes
        super().__init__(root, {"motif": motif, "num_nodes": num_nodes}, num_graphs, seed, **transforms)

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        positive = number % 2 == 1
        motif = np.array(MOTIFS[self.motif]).T  # [2, E of the motif]
        large, small = self.num_random_nodes, int(motif.max()) + 1
        degree = 2 * motif.shape[1] / small
        pairs = large * (large - 1) // 2
        parts = [random_pairs(rng, large, rng.binomial(pairs, degree / (large - 1)))]
        parts.append(large + (motif if positive else random_pairs(rng, small, motif.shape[1])))
        cross = max(1, rng.binomial(large * small, CROSS_EDGES_PER_NODE / large))
        code = rng.choice(large * small, cross, replace=False, shuffle=False)
        parts.append(np.stack([code // small, large + code % small]))
        row, col = np.concatenate(parts, axis=1)
        edge_index = both_ways(row, col, large + small)
        return to_data(edge_index, largest_neighbour_degrees(edge_index, large + small), torch.tensor([int(positive)]))


def random_pairs(rng: np.random.Generator, num_nodes: int, num_pairs: int) -> np.ndarray:
    """Distinct unordered pairs of different nodes, uniformly: ``[2, num_pairs]``, in ``O(num_pairs)`` memory for many
    nodes. A binomial ``num_pairs`` makes the graph G(n, p), a fixed one G(n, m).
    """
    code = rng.choice(num_nodes * (num_nodes - 1) // 2, num_pairs, replace=False, shuffle=False)
    col = ((1 + np.sqrt(8.0 * code + 1)) / 2).astype(np.int64)  # pair (row < col) has code col (col - 1) / 2 + row
    col -= col * (col - 1) // 2 > code  # the square root may round up
    return np.stack([code - col * (col - 1) // 2, col])


def largest_neighbour_degrees(edge_index: np.ndarray, num_nodes: int) -> np.ndarray:
    """The 5 largest degrees among each node's neighbours, descending and padded with zeros: ``[N, 5]``.

    Args:
        edge_index: Both directions of each edge, sorted by source, shape ``[2, E]``.
        num_nodes: Number of nodes ``N``.
    """
    degree = np.bincount(edge_index[0], minlength=num_nodes)
    source, value = edge_index[0], degree[edge_index[1]]
    order = np.lexsort((-value, source))
    rank = np.arange(source.size) - np.repeat(np.cumsum(degree) - degree, degree)
    keep = rank < NUM_FEATURES
    out = np.zeros((num_nodes, NUM_FEATURES))
    out[source[keep], rank[keep]] = value[order][keep]
    return out
