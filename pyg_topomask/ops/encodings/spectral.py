"""Lowest eigenpairs of graph Laplacians: dense for small graphs, sparse and component by component for large ones."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, eigh
from scipy.sparse import identity
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor

from pyg_topomask.checks import check_choice
from pyg_topomask.ops.csr import CSR, root_strengths, sym_normalize
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, strengths, to_scipy, undirected, with_diagonal

Array = NDArray[Any]

DENSE_NODES = 800
"""Largest graph, or component of one, that is decomposed densely; for larger ones the sparse solvers are faster."""

_ALL_PAIRS = 64  # up to this size, all eigenpairs are computed faster than the lowest ones alone

FALLBACK_NODES = 8192
"""Largest component that is decomposed densely if the sparse solvers fail: 512 MiB and some minutes."""

EIGVEC_NORMS = ("L1", "L2", "abs-max", "wavelength", "wavelength-asin", "wavelength-soft")
"""Normalisations of eigenvectors, called ``eigvec_norm`` in GraphGPS's configs."""

_TOLERANCE = 1e-9  # relative residual required from ARPACK
_RESTARTS = 60


def laplacian_eigenpairs(batch: GraphBatch, k: int, normalization: str | None = "sym") -> tuple[Tensor, Tensor]:
    r"""The ``k`` smallest eigenvalues of each graph's Laplacian, ascending, with eigenvectors of norm 1.

    ``A`` has the larger weight of both directions, without self-loops. ``"sym"`` is :math:`I - D^{-1/2} A D^{-1/2}`,
    ``"rw"`` :math:`I - D^{-1} A`, of which these are right eigenvectors, and :obj:`None` :math:`D - A`. A node of
    degree 0 has the eigenvalue 1 under the first two and 0 under the last, as in PyG.

    Graphs of up to 800 nodes are decomposed densely by LAPACK in float64. Larger graphs are decomposed component by
    component, because Lanczos iterations find a repeated eigenvalue 0 only through rounding errors. Lanczos is tried
    first. It may not converge if the spectral gap is small; such a graph has small cuts, so its sparse factorisation is
    cheap, and Lanczos on the inverse is tried next. The last resort is a dense decomposition. All solvers use float64
    and fixed starting vectors, so that results are the same on every call.

    The sign is fixed by `canonical_signs`; the basis of a repeated eigenvalue is arbitrary.

    Args:
        batch: Graphs.
        k: Number of eigenpairs, including the trivial ones.
        normalization: ``"sym"``, ``"rw"`` or :obj:`None`.

    Returns:
        Eigenvectors ``[N, k]`` and eigenvalues ``[B, k]``, float64; NaN if a graph has fewer than ``k`` nodes.

    Raises:
        RuntimeError: If both sparse solvers fail on a component of more than 8192 nodes.
    """
    if normalization not in ("sym", "rw", None):
        raise ValueError(f"'normalization' must be 'sym', 'rw' or None (got {normalization!r})")
    batch = undirected(batch)
    laplacian, scale = _laplacians(batch, normalization)
    vectors = np.full((batch.num_nodes, k), np.nan)
    values = np.full((len(batch.sizes), k), np.nan)
    with _one_blas_thread() if max(batch.sizes, default=0) <= DENSE_NODES else contextlib.nullcontext():
        for index, csr in enumerate(laplacian.graphs()):
            start, size = batch.ptr[index], csr.num_nodes
            if size == 0:
                continue
            count = min(k, size)
            value, basis = (
                _lowest(_to_dense(csr), count) if size <= DENSE_NODES else _by_component(to_scipy(csr), count)
            )
            if normalization == "rw":
                basis = basis * scale[start : start + size, None]
                basis /= np.linalg.norm(basis, axis=0)
            rounding = 1e-12 * float(csr.weight.abs().max())
            values[index, :count] = np.where(value > rounding, value, 0.0)
            vectors[start : start + size, :count] = basis * canonical_signs(basis)
    return torch.from_numpy(vectors), torch.from_numpy(values)


def _laplacians(batch: GraphBatch, normalization: str | None) -> tuple[GraphBatch, Array]:
    """Symmetric Laplacians, and the factors ``[N]`` that convert their eigenvectors to those of ``"rw"``."""
    csr = batch.csr
    root = root_strengths(csr)
    off, diagonal = (csr, strengths(csr)) if normalization is None else (sym_normalize(csr), torch.ones_like(root))
    return batch._replace(csr=with_diagonal(off._replace(weight=-off.weight), diagonal)), (1 / root).numpy()


def laplacian_reference(batch: GraphBatch, normalization: str | None = "sym") -> list[Tensor]:
    """Each graph's Laplacian from its definition, dense ``[n, n]``, float64."""
    found = []
    for csr in batch.graphs():
        adj = torch.from_numpy(to_scipy(csr).toarray())
        adj = torch.maximum(adj, adj.t())
        adj.fill_diagonal_(0)
        degree = adj.sum(dim=1)
        inverse = torch.where(degree > 0, 1 / degree, torch.zeros_like(degree))
        eye = torch.eye(adj.size(0), dtype=adj.dtype)
        laplacian = {
            None: degree.diag() - adj,
            "sym": eye - inverse.sqrt()[:, None] * adj * inverse.sqrt(),
            "rw": eye - inverse[:, None] * adj,
        }
        found.append(laplacian[normalization])
    return found


def canonical_signs(vectors: Array) -> Array:
    """Signs ``[k]`` that make eigenvectors ``[N, k]`` the same on every machine.

    The sum of cubes is made positive; relabelling nodes does not change it. If the sum vanishes, for example because
    the graph is symmetric, the first entry of largest magnitude is made positive.
    """
    cubes = vectors * vectors * vectors
    skew = cubes.sum(axis=0)
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - 1e-4) * size.max(axis=0, initial=0.0), axis=0)
    largest = vectors[first, np.arange(vectors.shape[1])]
    rule = np.where(np.abs(skew) > 1e-4 * np.abs(cubes).sum(axis=0), skew, largest)
    return np.where(rule < 0, -1.0, 1.0)


def _to_dense(csr: CSR) -> Array:
    matrix = np.zeros((csr.num_nodes, csr.num_nodes), order="F")
    matrix[csr.row.numpy(), csr.col.numpy()] = csr.weight.numpy()
    return matrix


def _lowest(lap: Array, count: int) -> tuple[Array, Array]:
    """Lowest eigenpairs by a dense decomposition."""
    if lap.shape[0] > _ALL_PAIRS:
        with contextlib.suppress(LinAlgError):  # inverse iteration for single vectors may fail
            some = eigh(lap, subset_by_index=[0, count - 1], check_finite=False)
            return some[0], some[1]
    values, vectors = np.linalg.eigh(lap)
    return values[:count], vectors[:, :count]


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """Limit BLAS to one thread, which takes less time than several for small matrices; needs threadpoolctl."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits


def _by_component(lap: Any, count: int) -> tuple[Array, Array]:
    """Lowest eigenpairs of all components, merged."""
    num_parts, label = connected_components(lap, directed=False)
    if num_parts == 1:
        return _component(lap, count)
    order = np.argsort(label, kind="stable")
    ends = np.cumsum(np.bincount(label, minlength=num_parts))
    found, support, column = [], [], []
    for start, end in zip(np.r_[0, ends[:-1]], ends):
        nodes = order[start:end]
        values, vectors = _component(lap[nodes][:, nodes], min(count, nodes.size))
        found.append(values)
        support.extend([nodes] * values.size)
        column.extend(vectors.T)
    joined = np.concatenate(found)
    chosen = np.argsort(joined, kind="stable")[:count]
    basis = np.zeros((lap.shape[0], count))
    for at, pick in enumerate(chosen):
        basis[support[pick], at] = column[pick]
    return joined[chosen], basis


def _component(lap: Any, count: int) -> tuple[Array, Array]:
    size = lap.shape[0]
    if size <= DENSE_NODES or 3 * count >= size:
        return _lowest(lap.toarray(), count)
    for way in (_lanczos, _inverse_lanczos):
        found = _converged(way, lap, count)
        if found is not None:
            return found
    if size <= FALLBACK_NODES:
        return _lowest(lap.toarray(), count)
    raise RuntimeError(
        f"the {count} lowest Laplacian eigenpairs of a component of {size} nodes were not found: neither Lanczos nor "
        f"its inverse converged, and it is larger than the dense solver's limit of {FALLBACK_NODES} nodes. Use fewer "
        "frequencies, or random-walk encodings"
    )


def _converged(way: Callable[[Any, int], tuple[Array, Array]], lap: Any, count: int) -> tuple[Array, Array] | None:
    """Eigenpairs in ascending order with a checked residual; None if the solver fails."""
    try:
        values, vectors = way(lap, count)
    except (ArpackError, RuntimeError, MemoryError):  # no convergence; singular or too large to be factorised
        return None
    order = np.argsort(values)
    values, vectors = values[order], vectors[:, order]
    residual = np.linalg.norm(lap @ vectors - vectors * values, axis=0)
    scale = max(1.0, float(abs(lap).sum(axis=1).max()))
    orthogonal = np.abs(vectors.T @ vectors - np.eye(count)).max() < 1e-6
    return (values, vectors) if orthogonal and bool((residual < 1e-6 * scale).all()) else None


def _lanczos(lap: Any, count: int) -> tuple[Array, Array]:
    top = float(abs(lap).sum(axis=1).max())  # no eigenvalue is larger
    flipped = (identity(lap.shape[0]) * top - lap).tocsr()
    values, vectors = eigsh(flipped, count, which="LA", **_settings(lap, count))
    return top - values, vectors


def _inverse_lanczos(lap: Any, count: int) -> tuple[Array, Array]:
    shift = 1e-5 * float(abs(lap).sum(axis=1).max())  # the matrix is singular, the shifted one positive definite
    values, vectors = eigsh(lap.tocsc(), count, sigma=-shift, which="LM", **_settings(lap, count))
    return values, vectors


def _settings(lap: Any, count: int) -> dict[str, Any]:
    size = lap.shape[0]
    start, width = np.random.default_rng(0).uniform(-1.0, 1.0, size), min(size - 1, max(4 * count, 40))
    return {"v0": start, "ncv": width, "maxiter": _RESTARTS, "tol": _TOLERANCE}


def normalize_eigenvectors(vectors: Tensor, values: Tensor, batch: GraphBatch, norm: str) -> Tensor:
    r"""Scale eigenvectors by one of `EIGVEC_NORMS`.

    Args:
        vectors: Shape ``[N, k]``; NaN for missing eigenvectors.
        values: Eigenvalues of each graph, ``[B, k]``.
        batch: Graphs.
        norm: ``"L1"``, ``"L2"`` and ``"abs-max"`` divide by that norm; ``"wavelength"`` also by
            :math:`\frac{2}{\pi} \sqrt\lambda`; ``"wavelength-asin"`` takes :math:`\arcsin(v / \max|v|) / \sqrt\lambda`;
            ``"wavelength-soft"`` divides by the softmax-weighted mean of :math:`|v|` and :math:`\sqrt\lambda`.
            :math:`\sqrt\lambda` counts as 1 for the eigenvalue 0.

    Returns:
        Shape ``[N, k]``.
    """
    check_choice("norm", norm, EIGVEC_NORMS)
    graph = torch.repeat_interleave(torch.arange(len(batch.sizes)), torch.tensor(batch.sizes, dtype=torch.int64))
    size = vectors.abs()

    def total(x: Tensor) -> Tensor:
        return x.new_zeros(values.shape).index_add_(0, graph, x)

    graph_index = graph[:, None].expand_as(size)
    top = size.new_zeros(values.shape).scatter_reduce(0, graph_index, size, "amax")
    root = torch.where(values < 1e-12, 1.0, values).sqrt()
    if norm == "wavelength-asin":
        return torch.asin((vectors / top.clamp(min=1e-12)[graph]).clamp(-1, 1)) / root[graph]
    if norm in ("L1", "L2"):
        length = total(size) if norm == "L1" else total(size.square()).sqrt()
    elif norm == "wavelength-soft":
        weight = (size - top[graph]).exp()
        length = total(weight * size) / total(weight) * root
    else:
        length = top if norm == "abs-max" else top * root * (2 / math.pi)
    return vectors / length.clamp(min=1e-12)[graph]
