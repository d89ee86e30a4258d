"""Laplacian eigenvectors and eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.spectral import EIGVEC_NORMS, laplacian_eigenpairs, normalize_eigenvectors
from pyg_topomask.transforms.encoding import Encoding, split_rows
from pyg_topomask.transforms.graph_input import check_name


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
        TypeError: If a size or count is not an integer.
        ValueError: If a setting is unknown, a weight is negative, or the graph is a batch.
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
