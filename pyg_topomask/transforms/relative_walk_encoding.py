"""Random-walk probabilities between every two nodes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.pair_encodings import check_pair_sizes, relative_walks
from pyg_topomask.transforms.encoding import Encoding, check_steps, split_rows


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
        TypeError: If ``steps`` is one number.
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
