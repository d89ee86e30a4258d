"""Induced cycle: does the extra edge of a tree connect its two farthest nodes, or other ones?"""

from collections.abc import Callable

import numpy as np
import torch
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.datasets.synthetic import SyntheticDataset, both_ways, to_data


class InducedCycleDataset(SyntheticDataset):
    r"""Random binary trees with one more edge, which connects two farthest nodes in every second graph.

    The tree has the shape of a binary search tree of a random permutation: each new node takes one of the free child
    positions, all equally likely. If ``y = 1``, the edge connects a uniformly random pair among those at the greatest
    distance. If ``y = 0``, it connects a uniformly random pair among all that are neither at the greatest distance nor
    adjacent. Every graph therefore has ``num_nodes`` edges and one cycle. The node feature is the degree minus 2, which
    is the mean degree of every such graph.

    The edge between farthest nodes connects two leaves (or a root with one child), so the degrees alone reveal
    something about the label; this is part of the published task.

    Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
    arXiv:2107.07999, Section 5.1.2. The trees of the two classes are independent here.

    Args:
        root: Folder of the processed file.
        num_graphs: Number of graphs; graph ``i`` is positive if ``i`` is odd. The default makes 2,048 of each class.
        num_nodes: Nodes of each tree, at least 5. The default is the paper's. Memory while generating is
            ``O(num_nodes²)`` for one graph.
        seed: Graph ``i`` depends only on ``(num_nodes, seed, i)``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving.

    Shapes:
        - a graph has ``N = num_nodes`` nodes: ``x [N, 1]``, ``edge_index [2, 2N]`` (each edge both ways, sorted),
          ``y [1]``

    Units: distances are numbers of edges, degrees numbers of neighbours.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If a number is not an integer.
    """

    def __init__(
        self, root: str, num_graphs: int = 4096, num_nodes: int = 50, seed: int = 0, **transforms: Callable | None
    ) -> None:
        self.size = check_integer("num_nodes", num_nodes, 5, "smaller trees may have no pair left for a negative graph")
        super().__init__(root, {"num_nodes": self.size}, num_graphs, seed, **transforms)

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        positive = number % 2 == 1
        parent = random_binary_tree(rng, self.size)
        distance = tree_distances(parent)
        farthest = distance == distance.max()
        first, second = np.nonzero(np.triu(farthest if positive else (distance > 1) & ~farthest))
        pick = rng.integers(first.size)
        row, col = np.append(parent[1:], first[pick]), np.append(np.arange(1, parent.size), second[pick])
        edge_index = both_ways(row, col, parent.size)
        degree = np.bincount(edge_index[0], minlength=parent.size)
        return to_data(edge_index, degree[:, None] - 2.0, torch.tensor([int(positive)]))


def random_binary_tree(rng: np.random.Generator, num_nodes: int) -> np.ndarray:
    """Parents ``[N]`` of a random binary search tree's nodes in the order of insertion; the root's is -1."""
    free_parents = [0, 0]  # the parent of each free child position; each insertion adds one
    parent = np.full(num_nodes, -1, dtype=np.int64)
    for node, pick in enumerate(rng.integers(np.arange(2, num_nodes + 1)), start=1):
        parent[node] = free_parents[pick]
        free_parents[pick] = node  # one of the new node's two positions replaces the used one
        free_parents.append(node)
    return parent


def tree_distances(parent: np.ndarray) -> np.ndarray:
    """Number of edges between every two nodes, ``[N, N]``; parents ``[N]`` come before their children."""
    distance = np.zeros((parent.size, parent.size), dtype=np.int32)
    for node in range(1, parent.size):
        distance[node, :node] = distance[:node, node] = distance[parent[node], :node] + 1
    return distance
