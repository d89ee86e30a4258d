"""Distances of a graph, which tests compare with."""

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path


def dense_distances(edge_index, num_nodes, length=None):
    """Distances ``[N, N]`` along edges by SciPy, infinite without a path; of equal edges the shortest counts."""
    found = np.full((num_nodes, num_nodes), np.inf)
    lengths = np.ones(edge_index.size(1)) if length is None else length.double().numpy()
    np.minimum.at(found, tuple(edge_index.numpy()), lengths)
    found = shortest_path(csr_matrix(np.where(np.isfinite(found), found, 0)), directed=True)
    return torch.from_numpy(found).view(num_nodes, num_nodes)


def forest_distances(parent, length=None):
    """Distances of a forest from the parents of nodes, −1 for roots, and the lengths of the edges to them."""
    child = (parent >= 0).nonzero().flatten()
    edges = torch.stack([child, parent[child]])
    length = None if length is None else length[child].repeat(2)
    return dense_distances(torch.cat([edges, edges.flip(0)], 1), len(parent), length)
