"""Dense matrices of a graph from their definitions, which tests compare with."""

import torch

from pyg_topomask.testing import dense_adjacency


def normalised_adjacency(data):
    """``D^-1/2 A D^-1/2``; a node without edges keeps its row of zeros."""
    adj = dense_adjacency(data)
    root = torch.where(adj.sum(1) > 0, adj.sum(1), 1).sqrt()
    return adj / root[:, None] / root


def power_series(matrix, coeffs):
    """The powers of a matrix, weighted by ``coeffs [*, K + 1]`` and summed: ``[*, N, N]``."""
    coeffs = torch.as_tensor(coeffs, dtype=matrix.dtype)
    powers = torch.stack([torch.linalg.matrix_power(matrix, k) for k in range(coeffs.size(-1))])
    return torch.einsum("...k,kij->...ij", coeffs, powers)


def heat_generator(adj, laplacian):
    """The matrix of which heat kernels are the exponential, times minus the time."""
    strength = adj.sum(1)
    lap = torch.diag(strength) - adj
    inverse = torch.where(strength > 0, 1 / torch.where(strength > 0, strength, 1), 1)
    return {
        "combinatorial": lap,
        "normalized": inverse.sqrt()[:, None] * lap * inverse.sqrt(),
        "random_walk": lap * inverse,
        "adjacency": -adj,
    }[laplacian]
