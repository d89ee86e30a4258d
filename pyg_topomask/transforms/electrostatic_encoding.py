"""Potentials of unit charges on a graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.pair_encodings import check_pair_sizes, electrostatic_encoding
from pyg_topomask.transforms.encoding import Encoding, split_rows


class AddElectrostaticEncoding(Encoding):
    r"""Add statistics of the potentials of unit charges to a graph.

    Adds ``electrostatic`` ``[N, 8]``, float32: the columns of
    `pyg_topomask.ops.encodings.pair_encodings.electrostatic_encoding`, which are those of GraphGPS's ElstaticSE without
    its two maxima, which are 0 on every graph. In a directed graph, a pair of nodes has the larger weight of both
    directions, as in GraphGPS. Equal edges add up, self-loops are ignored, and ``edge_weight`` is a conductance.

    Reference: Kreuzer et al., *Rethinking Graph Transformers with Spectral Attention*, NeurIPS 2021,
    arXiv:2106.03893, Section 2.3.

    Raises:
        ValueError: If a graph has more than 8192 nodes (all pairs have potentials), a weight is negative, weights
            are so small that potentials exceed float32, or the graph is a batch.
    """

    adds = ("electrostatic",)
    needs_one_graph = True

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        check_pair_sizes(batch.sizes, "electrostatic encodings")
        return [{"electrostatic": rows} for rows in split_rows(electrostatic_encoding(batch).float(), batch.sizes)]
