"""What the test reads from a graph: edges and equivariant encodings of nodes and edges."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform, Compose

from pyg_topomask.expressivity.mask_rows import Mask, entries_of
from pyg_topomask.expressivity.refinement import EncodedGraph, classes_of
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.encodings.graph_batch import join_graphs
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.transforms import AddGridShape, AddRandomWalks, AddTreeOrder
from pyg_topomask.transforms.base import parts_of
from pyg_topomask.transforms.graph_input import with_edge_index
from pyg_topomask.transforms.relabel import permute, tables_of

Transform = Callable[[Data], Data]

EIGEN_GAP = 1e-6
"""Eigenvalues of the normalised Laplacian that are closer than this belong to one eigenspace."""

MAX_EIGEN_NODES = 4096
"""Largest graph whose Laplacian is decomposed; the dense float64 decomposition takes about a minute on one core."""

_EIGENVECTORS = "laplacian_eigenvector_pe"
_INVARIANTS = "laplacian_invariants"
_RELABELLINGS = 2


def laplacian_invariants(data: Data, k: int) -> Tensor:
    r"""Invariants of Laplacian eigenvectors 1 to ``k`` under changes of sign and basis, ``[N, 2k]``, float64.

    For each of the eigenvalues 1 to ``k`` of :math:`I - D^{-1/2} A D^{-1/2}` (eigenvalue 0, the smallest, is left out,
    as in PyG), they are the eigenvalue and the entry :math:`P_{vv}` of the projector :math:`P` onto its eigenspace. An
    eigenspace that ``k`` would cut is used completely. Columns that a small graph lacks hold −1. Equal edges add up,
    self-loops are left out, and ``A`` has the larger weight of both directions, so that the spectrum is real.

    Args:
        data: Graph with ``edge_index`` and optionally ``edge_weight``.
        k: Number of eigenvectors.

    Raises:
        ValueError: If the graph has more than 4096 nodes (the decomposition is dense), or a weight is negative.
    """
    num_nodes = int(data.num_nodes or 0)
    if num_nodes > MAX_EIGEN_NODES:
        raise ValueError(
            f"Laplacian encodings are compared on graphs of at most {MAX_EIGEN_NODES} nodes (got {num_nodes}), "
            "because whole eigenspaces need a dense decomposition; use AddRandomWalkPE on larger ones"
        )
    (laplacian,) = laplacian_reference(join_graphs([data.edge_index], [num_nodes], [data.get("edge_weight")]))
    values, vectors = np.linalg.eigh(laplacian.numpy())
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > EIGEN_GAP)
    space = np.searchsorted(starts, np.arange(1, min(k + 1, num_nodes)), side="right") - 1
    result = np.full((num_nodes, 2 * k), -1.0)
    if space.size > 0:
        sizes = np.diff(starts, append=num_nodes)
        result[:, : space.size] = (np.add.reduceat(values, starts) / sizes)[space]
        result[:, k : k + space.size] = np.add.reduceat(vectors**2, starts, axis=1)[:, space]
    return torch.from_numpy(result)


class _LaplacianInvariants(BaseTransform):
    """Replaces PyG's AddLaplacianEigenvectorPE, on graphs of any size."""

    def __init__(self, k: int, attr_name: str | None) -> None:
        self.k, self.attr_name = k, attr_name

    def forward(self, data: Data) -> Data:
        value = laplacian_invariants(data, self.k)
        if self.attr_name is not None:
            data[f"{self.attr_name}_{_INVARIANTS}"] = value
        else:
            data.x = value if data.x is None else torch.cat([data.x.cpu().double().flatten(1), value], dim=1)
        return data


def encode(dataset: Sequence[Data], transform: Transform | None, mask: Mask | None = None) -> list[EncodedGraph]:
    """Apply the transform and read the mask; refuse encodings and masks that are not equivariant.

    The inputs and torch's random state are not changed.
    """
    for data in dataset:
        if not isinstance(data, Data) or isinstance(data, Batch):
            hint = "for HeteroData, call to_homogeneous(); for a Batch, to_data_list()"
            raise TypeError(f"the test compares single homogeneous graphs (got {type(data).__name__}); {hint}")
    dataset = [with_edge_index(data) for data in dataset]
    for data in dataset:
        if data.edge_index is None:
            raise ValueError("a graph has no edges; it needs 'edge_index' or 'adj_t'")
        check_edges(data.edge_index, int(data.num_nodes or 0), None)
    transform = None if transform is None else _invariant(transform)
    with torch.random.fork_rng(devices=[]):
        steps = [*parts_of(transform)]
        read = [_apply(data, transform) for data in dataset]
        roles = _roles(read)
        graphs = [_to_arrays(data, roles, mask, steps) for data, _ in read]
        is_grid = "grid_shape" in getattr(mask, "requires", ())  # a grid has one numbering
        if not is_grid and (mask is not None or not all(isinstance(part, _KNOWN) for part in steps)):
            generator, copies = torch.Generator().manual_seed(0), []
            for data in [data for data in dataset for _ in range(_RELABELLINGS)]:
                copies.append(_to_arrays(_apply(_relabelled(data, generator), transform)[0], roles, mask, steps))
            _check_copies(graphs, copies)
        return graphs


def _check_copies(graphs: Sequence[EncodedGraph], copies: Sequence[EncodedGraph]) -> None:
    """Refuse encodings by which the test would distinguish a graph from one of its relabelled copies.

    Args:
        graphs: The graphs.
        copies: The copies of the first graph, followed by those of the second one, and so on.
    """
    classes = classes_of([*graphs, *copies], None)
    for number, moved in enumerate(copies):
        graph = graphs[number // _RELABELLINGS]
        if classes[len(graphs) + number] != classes[number // _RELABELLINGS]:
            keys = (*graph.node, *graph.edge)
            other = "transform" if graph.mask is None else "mask"
            blamed = next((key for key in ("edge_index", *keys) if _differ(graph, moved, key)), other)
            raise ValueError(
                f"{blamed!r} differs between a graph and a relabelled copy of it, because it depends on chance or on "
                "the numbering of nodes. Results under it would be unreliable. Random encodings cannot be tested, of "
                "eigenvectors only those of AddLaplacianEigenvectorPE, and of masks of sampled walks their expectation"
            )


def _differ(first: EncodedGraph, second: EncodedGraph, key: str) -> bool:
    """Whether two graphs are distinguished by one encoding, or by none if it does not exist."""

    def only(graph: EncodedGraph) -> EncodedGraph:
        node, edge = ({key: rows[key]} if key in rows else {} for rows in (graph.node, graph.edge))
        return EncodedGraph(graph.num_nodes, graph.edge_index, node, edge)

    return len(set(classes_of([only(first), only(second)], None))) > 1


_STRUCTURE = ("edge_index", "batch", "ptr")

_KNOWN = (AddRandomWalkPE, AddRandomWalks, AddTreeOrder, AddGridShape, _LaplacianInvariants)
"""Transforms that are equivariant, or add only attributes that the test does not read."""


def _invariant(transform: Transform) -> Transform:
    """The transform with invariants instead of Laplacian eigenvectors."""
    if isinstance(transform, AddLaplacianEigenvectorPE):
        return _LaplacianInvariants(transform.k, transform.attr_name)
    return Compose([_invariant(part) for part in transform.transforms]) if isinstance(transform, Compose) else transform


def _apply(data: Data, transform: Transform | None) -> tuple[Data, list[str]]:
    """The graph with its encodings, and the names of these."""
    if transform is None:
        return data, ["x", "edge_attr"]
    result = transform(data.clone())
    result = with_edge_index(result) if isinstance(result, Data) else result
    if not isinstance(result, Data) or isinstance(result, Batch) or result.edge_index is None:
        hint = "; is it a class that was not called?" if isinstance(transform, type) else ""
        raise TypeError(f"'transform' must return a graph with edge_index (got {type(result).__name__}){hint}")
    check_edges(result.edge_index, int(result.num_nodes or 0), None)
    vectors = result.get(_EIGENVECTORS)
    if isinstance(vectors, Tensor) and not _same(vectors, data.get(_EIGENVECTORS)):
        result[_EIGENVECTORS] = laplacian_invariants(result, 1 if vectors.dim() == 1 else vectors.size(1))
    tables = tables_of(result, "length")
    names = ["x", "edge_attr"]
    for key, value in result.to_dict().items():
        skip = key in names or key in _STRUCTURE or key.startswith(tables)
        if not isinstance(value, Tensor) or skip or _same(value, data.get(key)):
            continue
        if not any(part in key for part in ("index", "batch", "ptr")):
            names.append(key)
        elif value.dim() > 0 and value.size(0) in (result.num_nodes, result.num_edges):
            warnings.warn(
                f"{key!r} is not compared, because PyG treats names with 'index', 'batch' or 'ptr' as numbers of nodes "
                "or graphs; rename it if it is an encoding",
                stacklevel=2,
            )
    return result, names


def _same(value: Tensor, other: object) -> bool:
    return isinstance(other, Tensor) and torch.equal(value, other)


def _relabelled(data: Data, generator: torch.Generator) -> Data:
    """A copy with its nodes and edges in another order, and without walk tables."""
    data, device, walks = data.clone(), data.edge_index.device, tables_of(data, "load")
    for key in [key for key in data.to_dict() if key.startswith(walks)]:
        del data[key]
    orders = (torch.randperm(size, generator=generator) for size in (int(data.num_nodes or 0), data.num_edges))
    moved = permute(data, *(order.to(device) for order in orders))
    moved.num_nodes = data.num_nodes
    return moved


def _roles(read: Sequence[tuple[Data, list[str]]]) -> dict[str, str]:
    """For each encoding ``"node"`` or ``"edge"``: what it has one row for on every graph."""
    roles: dict[str, str] = {}
    graphs = [data for data, _ in read if data.num_nodes]
    for key in dict.fromkeys(key for _, names in read for key in names):
        values = [data.get(key) for data in graphs]
        if all(value is None for value in values):
            continue
        possible = {"node", "edge"}
        for data, value in zip(graphs, values):
            if isinstance(value, Tensor):
                rows = value.size(0) if value.dim() > 0 else -1
                sizes = {"node": data.num_nodes, "edge": data.num_edges}
                possible &= {role for role, size in sizes.items() if size == rows}
        own = {"x": "node", "edge_attr": "edge"}.get(key)
        if own is not None and own not in possible:
            raise ValueError(f"{key!r} must have one row for each {own}")
        if not possible:
            continue
        roles[key] = own or ("edge" if possible == {"edge"} or ("edge" in possible and "edge" in key) else "node")
        lacking = [data for data, value in zip(graphs, values) if value is None]
        if any(roles[key] == "node" or data.num_edges > 0 for data in lacking):
            raise ValueError(f"{key!r} is on some of the graphs only; all graphs must have the same encodings")
    return roles


def _to_arrays(data: Data, roles: dict[str, str], mask: Mask | None, steps: Sequence[Transform]) -> EncodedGraph:
    entries = None if mask is None else entries_of(mask, data, steps)
    graph = EncodedGraph(int(data.num_nodes or 0), data.edge_index.cpu().long().numpy(), {}, {}, entries)
    for key, role in roles.items():
        value = data.get(key)
        count = graph.num_nodes if role == "node" else graph.edge_index.shape[1]
        if count == 0:
            continue
        rows = value.detach().cpu()
        rows = (rows.to_dense() if rows.layout != torch.strided else rows).reshape(count, -1)
        if rows.is_complex():
            raise ValueError(f"{key!r} holds complex numbers; give real and imaginary parts")
        if not bool(rows.isfinite().all()):
            raise ValueError(f"{key!r} holds NaN or infinity")
        array = (rows.double() if rows.is_floating_point() else rows.long()).numpy()
        (graph.node if role == "node" else graph.edge)[key] = array
    return graph
