"""Encodings of nodes and of pairs of nodes: walks, heat, charges, eigenvectors and shortest paths."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.ops.encodings.diagonals import return_probabilities
from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.heat_diagonals import heat_diagonals
from pyg_topomask.ops.encodings.pair_encodings import (
    NUM_ELECTROSTATIC,
    check_pair_sizes,
    electrostatic_encoding,
    relative_walks,
    shortest_path_lengths,
    types_along_paths,
)
from pyg_topomask.ops.encodings.spectral import EIGVEC_NORMS, laplacian_eigenpairs, normalize_eigenvectors
from pyg_topomask.transforms.encoding import Encoding, check_steps, split_rows
from pyg_topomask.transforms.graph_input import check_name, edges_of


class AddRandomWalkEncoding(Encoding):
    r"""Add the return probabilities :math:`(P^k)_{ii}`, :math:`P = D^{-1} A`, of random walks to a graph.

    Adds ``random_walk_diagonal`` ``[N, len(steps)]``, float32.

    A walk follows edges in their direction and ends at a node without outgoing edges. Equal edges add up, self-loops
    count, and ``edge_weight`` is the weight of a step. (PyG's `AddRandomWalkPE` gives the same values on graphs without
    weights and repeated edges.)

    Reference: Dwivedi et al., *Graph Neural Networks with Learnable Structural and Positional Representations*, ICLR
    2022, arXiv:2110.07875, Section 3.2.

    Args:
        steps: Numbers of steps k ≥ 1.

    Raises:
        TypeError: If ``steps`` is one number, or the graph is a ``HeteroData``.
        ValueError: If a setting is out of range, or a weight is negative.
    """

    adds = ("random_walk_diagonal",)

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = check_steps(steps, 1)

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        found = split_rows(return_probabilities(batch, self.steps), batch.sizes)
        return [{"random_walk_diagonal": rows} for rows in found]


class AddHeatDiagonalEncoding(Encoding):
    r"""Add the remaining heat :math:`(e^{-tL})_{ii}`, minus its limit for :math:`t \to \infty`, to a graph.

    Adds ``heat_diagonal`` ``[N, len(times)]``, float32: :math:`\sum_{\lambda_k > 0} e^{-t\lambda_k} u_k(i)^2` of
    :math:`L = D - A`.

    In a directed graph, a pair of nodes has the larger weight of both directions, as in GraphGPS. Equal edges add up,
    self-loops are ignored, and ``edge_weight`` is used.

    Reference: Kreuzer et al., *Rethinking Graph Transformers with Spectral Attention*, NeurIPS 2021,
    arXiv:2106.03893, Section 2; the constant part is left out as in GraphGPS's HKdiagSE.

    Args:
        times: Diffusion times t ≥ 0.

    Raises:
        TypeError: If the graph is a ``HeteroData``.
        ValueError: If a setting is out of range, a weight is negative, or a time multiplied by a node's strength (sum
            of its edge weights) exceeds about 2e7.
    """

    adds = ("heat_diagonal",)

    def __init__(self, times: Sequence[float]) -> None:
        self.times = [float(time) for time in times]
        if not self.times or not all(0 <= time < float("inf") for time in self.times):
            raise ValueError(f"'times' must be finite numbers ≥ 0, at least one (got {list(times)})")

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        found = split_rows(heat_diagonals(batch, self.times), batch.sizes)
        return [{"heat_diagonal": rows} for rows in found]


class AddElectrostaticEncoding(Encoding):
    r"""Add statistics of the potentials of unit charges to a graph.

    Adds ``electrostatic`` ``[N, 8]``, float32: the columns of
    `pyg_topomask.ops.encodings.pair_encodings.electrostatic_encoding`, which are those of GraphGPS's ElstaticSE without
    its two maxima, which are 0 on every graph. In a directed graph, a pair of nodes has the larger weight of both
    directions, as in GraphGPS. Equal edges add up, self-loops are ignored, and ``edge_weight`` is a conductance.

    Reference: Kreuzer et al., *Rethinking Graph Transformers with Spectral Attention*, NeurIPS 2021,
    arXiv:2106.03893, Section 2.3.

    Raises:
        TypeError: If the graph is a ``HeteroData``.
        ValueError: If a graph has more than 8192 nodes (all pairs have potentials), a weight is negative, weights are
            so small or so large that potentials leave the range of float32, or the graph is a batch.
    """

    adds = ("electrostatic",)
    num_columns = NUM_ELECTROSTATIC
    needs_one_graph = True

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        check_pair_sizes(batch.sizes, "electrostatic encodings")
        return [{"electrostatic": rows} for rows in split_rows(electrostatic_encoding(batch).float(), batch.sizes)]


class AddLaplacianEncoding(Encoding):
    r"""Add the lowest eigenpairs of the graph Laplacian to a graph.

    Adds the following float32 attributes, with NaN if a graph has fewer than ``max_freqs`` nodes:

    - ``laplacian_vectors`` ``[N, max_freqs]``: eigenvectors by ascending eigenvalue, including the trivial ones
    - ``laplacian_values`` ``[N, max_freqs]``: their eigenvalues, equal on all nodes of a graph

    The stored signs are fixed by `pyg_topomask.ops.encodings.spectral.canonical_signs`; an encoder flips them at random
    during training. The basis of a repeated eigenvalue is arbitrary. In a directed graph, a pair of nodes has the
    larger weight of both directions, as in GraphGPS. Equal edges add up, self-loops are ignored, and ``edge_weight`` is
    used. An isolated node has the eigenvalue 1 if ``laplacian_norm`` is ``"sym"`` or ``"rw"``, as in PyG.

    Reference: Dwivedi et al., *Benchmarking Graph Neural Networks*, JMLR 2023, arXiv:2003.00982, Section 4.1, with the
    trivial eigenvector kept and missing ones marked as in Rampášek et al., NeurIPS 2022, arXiv:2205.12454.

    Args:
        max_freqs: Number of eigenpairs, including the trivial ones. 10 is the most frequent value in that paper's
            configs.
        laplacian_norm: ``"sym"``: :math:`I - D^{-1/2} A D^{-1/2}`; ``"rw"``: :math:`I - D^{-1} A`; :obj:`None`:
            :math:`D - A`.
        eigvec_norm: Scale of the eigenvectors: ``"L1"``, ``"L2"``, ``"abs-max"``, ``"wavelength"``,
            ``"wavelength-asin"`` or ``"wavelength-soft"``, see
            `pyg_topomask.ops.encodings.spectral.normalize_eigenvectors`.
        name: Prefix of the attributes, so that one graph can have encodings of two settings.

    Raises:
        TypeError: If ``max_freqs`` is not an integer, or the graph is a ``HeteroData``.
        ValueError: If a setting is unknown or out of range, a weight is negative, or the graph is a batch.
        RuntimeError: If a graph is too large for the dense decomposition and the sparse solvers fail.
    """

    adds = ("{name}_vectors", "{name}_values")
    needs_one_graph = True

    def __init__(
        self, max_freqs: int = 10, laplacian_norm: str | None = "sym", eigvec_norm: str = "L2", name: str = "laplacian"
    ) -> None:
        max_freqs = check_integer("max_freqs", max_freqs, 1)
        check_choice("laplacian_norm", laplacian_norm, ("sym", "rw", None))
        check_choice("eigvec_norm", eigvec_norm, EIGVEC_NORMS)
        check_name(name)
        self.max_freqs, self.laplacian_norm, self.eigvec_norm, self.name = max_freqs, laplacian_norm, eigvec_norm, name

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        vectors, values = laplacian_eigenpairs(batch, self.max_freqs, self.laplacian_norm)
        if self.eigvec_norm != "L2" or self.laplacian_norm == "rw":
            vectors = normalize_eigenvectors(vectors, values, batch, self.eigvec_norm)
        names = f"{self.name}_vectors", f"{self.name}_values"
        return [
            {names[0]: rows, names[1]: value.float().repeat(size, 1)}
            for rows, value, size in zip(split_rows(vectors.float(), batch.sizes), values, batch.sizes)
        ]


class AddRelativeWalkEncoding(Encoding):
    r"""Add the probabilities :math:`(P^k)_{ij}`, :math:`P = D^{-1} A`, of walks between every two nodes to a graph.

    Adds ``pair_relative_walk`` ``[N², len(steps)]``, float32: row ``i N + j`` is the pair (i, j). PyG's collation
    concatenates the tables of a batch without padding. A walk follows edges in their direction and ends at a node
    without outgoing edges. Equal edges add up, self-loops count, and ``edge_weight`` is the weight of a step.

    Reference: Ma et al., *Graph Inductive Biases in Transformers without Message Passing*, ICML 2023,
    arXiv:2305.17589, Section 3.1.

    Args:
        steps: Numbers of steps k ≥ 0. The paper uses ``range(K)``, whose first step is the identity.

    Raises:
        TypeError: If ``steps`` is one number, or the graph is a ``HeteroData``.
        ValueError: If a step is out of range, a graph has more than 8192 nodes or is a batch, or a weight is negative.
    """

    adds = ("pair_relative_walk",)
    needs_one_graph = True

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = check_steps(steps, 0)

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        check_pair_sizes(batch.sizes, "relative random-walk encodings")
        rows = relative_walks(batch, self.steps)
        return [{"pair_relative_walk": part} for part in split_rows(rows, [size * size for size in batch.sizes])]


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
        TypeError: If ``num_spatial_types`` is not an integer, or the graph is a ``HeteroData``.
        ValueError: If ``num_spatial_types`` is out of range, or there are ``paths`` without ``pairs``. When called, if
            a graph has more than 8192 nodes, is a batch, or has edges without a single type.
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
        for own, part in zip(added, split_rows(kinds, squares)):
            own["pair_shortest_path"] = part
        if self.paths:
            for own, graph, size, lengths, previous in zip(added, graphs, batch.sizes, hops.split(squares), before):
                table, most = lengths.view(size, size).numpy(), self.num_spatial_types - 1
                types = types_along_paths(table, previous, _edge_types(graph, size), most)
                own["pair_shortest_path_types"] = torch.from_numpy(types).flatten(0, 1)
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
