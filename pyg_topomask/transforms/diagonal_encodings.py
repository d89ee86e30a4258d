"""Diagonals of random-walk matrices and heat kernels: the share of a walk or of heat that is back at its start."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.encodings.diagonals import return_probabilities
from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.heat_diagonals import heat_diagonals
from pyg_topomask.transforms.encoding import Encoding, check_steps, split_rows


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
        TypeError: If ``steps`` is one number.
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
