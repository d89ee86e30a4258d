"""Random regular graphs and their spectral gap."""

import numpy as np
import torch
from scipy.linalg import eigvalsh
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

# Up to this size, computing all eigenvalues of the dense matrix is cheaper than a Lanczos run.
_DENSE_NODES = 192


def random_cycles(num_nodes: int, num_cycles: int, generator: torch.Generator | None = None) -> Tensor:
    """Union of uniform random Hamiltonian cycles on at least 3 nodes, as a symmetric multigraph without loops.

    Every node has exactly ``2 * num_cycles`` neighbours, counted with multiplicity, and the graph is connected.

    Args:
        num_nodes: ``N``, at least 3.
        num_cycles: Number of cycles.
        generator: Source of randomness; torch's default generator if :obj:`None`.

    Returns:
        Edges in both directions, shape ``[2, 2 * num_cycles * N]``, int64.
    """
    order = torch.stack([torch.randperm(num_nodes, generator=generator) for _ in range(num_cycles)])
    after = order.roll(-1, dims=1)
    return torch.stack([torch.cat([order, after]).flatten(), torch.cat([after, order]).flatten()])


def random_permutations(num_nodes: int, num_permutations: int, generator: torch.Generator | None = None) -> Tensor:
    """Graph that connects every node to its images under some uniform random permutations, without loops.

    A node has ``2 * num_permutations`` neighbours, counted with multiplicity, minus two for each permutation that maps
    it to itself. The graph may be disconnected.

    Args:
        num_nodes: ``N``.
        num_permutations: Number of permutations.
        generator: Source of randomness; torch's default generator if :obj:`None`.

    Returns:
        Edges in both directions, shape ``[2, E]``, int64.
    """
    drawn = [torch.randperm(num_nodes, generator=generator) for _ in range(num_permutations)]
    return _joined(torch.cat(drawn), num_nodes)


def random_stubs(num_nodes: int, num_copies: int, generator: torch.Generator | None = None) -> Tensor:
    """Like `random_permutations`, with one permutation of ``num_copies`` copies of all nodes."""
    return _joined(torch.randperm(num_copies * num_nodes, generator=generator) % num_nodes, num_nodes)


def _joined(image: Tensor, num_nodes: int) -> Tensor:
    node = torch.arange(image.numel()) % num_nodes
    node, image = node[node != image], image[node != image]
    return torch.stack([torch.cat([node, image]), torch.cat([image, node])])


EXPANDERS = {"Hamiltonian": random_cycles, "Random-d": random_permutations, "Random-d-2": random_stubs}
"""Ways to draw a random graph of given degree, by their names in Exphormer's configs."""


def complete_graph(num_nodes: int) -> Tensor:
    """Every ordered pair of different nodes, shape ``[2, N (N - 1)]``, int64."""
    return (1 - torch.eye(num_nodes, dtype=torch.int64)).nonzero().t().contiguous()


def spectral_gap(edge_index: Tensor, num_nodes: int) -> float:
    r"""Second smallest eigenvalue of the Laplacian :math:`D - A` of a symmetric multigraph on at least 2 nodes.

    Cost: :math:`O(N^3)` up to 192 nodes; for larger graphs a Lanczos iteration of sparse products from a fixed
    start, to 0.001 of the largest degree.

    Args:
        edge_index: Edges in both directions, shape ``[2, E]``; equal edges add up.
        num_nodes: ``N``.
    """
    row, col = edge_index.cpu().numpy()
    adjacency = csr_matrix((np.ones(row.size), (row, col)), shape=(num_nodes, num_nodes))
    degree = np.bincount(row, minlength=num_nodes).astype(np.float64)
    if num_nodes <= _DENSE_NODES:
        laplacian = np.diag(degree) - adjacency.toarray()
        return float(eigvalsh(laplacian, subset_by_index=(1, 1), check_finite=False)[0])
    # Largest eigenvalue of c I − L, where the constant vector, of eigenvalue c, has been moved to −c.
    top = float(degree.max())
    shifted = LinearOperator(
        (num_nodes, num_nodes),
        matvec=lambda x: (top - degree) * x.ravel() + adjacency @ x.ravel() - 2 * top * x.mean(),
        dtype=np.float64,
    )
    start = np.random.default_rng(0).standard_normal(num_nodes)
    return top - float(eigsh(shifted, k=1, which="LA", v0=start, tol=1e-3, return_eigenvectors=False)[0])
