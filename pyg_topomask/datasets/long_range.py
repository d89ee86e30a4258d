"""Node tasks whose answer lies several hops away."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.datasets.induced_cycle import random_binary_tree, tree_distances
from pyg_topomask.datasets.synthetic import SyntheticDataset, both_ways, nearest_neighbors, to_data

LONG_RANGE = ("share", "tree", "ring")
"""Names of the tasks."""

NUM_LABELS, REACH, NUM_DISTANCES = 4, 4, 10
_NEIGHBORS = 3


class LongRangeDataset(SyntheticDataset):
    r"""Graphs in which the target of a node depends on nodes several hops away.

    - ``"share"``: random points, each linked to its 3 nearest ones, with 4 random labels. The target is the share of a
      node's own label among the other nodes within 4 hops.
    - ``"tree"``: random binary trees with one marked node. The target is the number of hops to it, in 10 classes of
      which the last is "9 or more".
    - ``"ring"``: rings of nodes with a random number. The target is the number of the opposite node.

    Layers of message passing see one hop each. Attention over all nodes sees all of them, but does not know which ones
    are near unless a mask says so.

    Args:
        root: Folder of the processed file.
        task: ``"share"``, ``"tree"`` or ``"ring"``.
        num_graphs: Number of graphs; 256 by default, as in our configs.
        num_nodes: Nodes ``N`` of each graph, at least 10; even for ``"ring"``. With the default, 64, opposite nodes of
            a ring are 32 hops apart.
        seed: Graph ``i`` depends only on ``(task, num_nodes, seed, i)``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving.

    Shapes:
        - ``"share"``: ``x [N, 4]`` (one-hot label), ``y [N]`` in [0, 1], float32, ``pos [N, 2]``
        - ``"tree"``: ``x [N, 1]`` (1 at the marked node, else 0), ``y [N]`` in 0 … 9, int64
        - ``"ring"``: ``x [N, 1]`` (standard normal), ``y [N]``, float32
        - ``edge_index [2, E]``: each edge both ways, sorted

    Units: distances are numbers of edges.

    Raises:
        ValueError: If ``task`` is unknown, a number is out of range, or a ring has an odd number of nodes.
        TypeError: If a number is not an integer.
    """

    def __init__(
        self,
        root: str,
        task: str,
        num_graphs: int = 256,
        num_nodes: int = 64,
        seed: int = 0,
        **transforms: Callable | None,
    ) -> None:
        check_choice("task", task, LONG_RANGE)
        self.task, self.size = task, check_integer("num_nodes", num_nodes, 10, "targets should be several hops away")
        if task == "ring" and self.size % 2 == 1:
            raise ValueError(f"'num_nodes' of a ring must be even, so that each has an opposite one (got {self.size})")
        super().__init__(root, {"task": task, "num_nodes": self.size}, num_graphs, seed, **transforms)

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        return {"share": _share, "tree": _tree, "ring": _ring}[self.task](self.size, rng)


def _share(size: int, rng: np.random.Generator) -> Data:
    points, label = rng.random((size, 2)), rng.integers(NUM_LABELS, size=size)
    edge_index = nearest_neighbors(points, _NEIGHBORS)
    adj = csr_matrix((np.ones(edge_index.shape[1]), edge_index), shape=(size, size))
    within = (shortest_path(adj, unweighted=True) <= REACH) & ~np.eye(size, dtype=bool)
    share = (within & (label[:, None] == label)).sum(1) / within.sum(1)
    data = to_data(edge_index, np.eye(NUM_LABELS)[label], torch.from_numpy(share).float())
    data.pos = torch.from_numpy(points).float()
    return data


def _tree(size: int, rng: np.random.Generator) -> Data:
    parent, marked = random_binary_tree(rng, size), rng.integers(size)
    distance = np.minimum(tree_distances(parent)[marked], NUM_DISTANCES - 1)
    edge_index = both_ways(parent[1:], np.arange(1, size), size)
    return to_data(edge_index, np.eye(size)[marked][:, None], torch.from_numpy(distance).long())


def _ring(size: int, rng: np.random.Generator) -> Data:
    node, value = np.arange(size), rng.normal(size=size)
    opposite = torch.from_numpy(np.roll(value, -size // 2)).float()
    return to_data(both_ways(node, (node + 1) % size, size), value[:, None], opposite)
