"""Diagonals of random-walk matrices and heat kernels: the share of a walk or of heat that is back at its start."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.encodings.diagonals import Diagonals, check_method, return_probabilities
from pyg_topomask.ops.encodings.graph_batch import GraphBatch
from pyg_topomask.ops.encodings.heat_diagonals import heat_diagonals
from pyg_topomask.transforms.encoding import Encoding, check_steps, split_rows
from pyg_topomask.transforms.graph_input import check_name

log = logging.getLogger(__name__)


class AddRandomWalkEncoding(Encoding):
    r"""Add the return probabilities :math:`(P^k)_{ii}`, :math:`P = D^{-1} A`, of random walks to a graph.

    Adds:

    - ``random_walk_diagonal`` ``[N, len(steps)]``, float32
    - ``random_walk_error`` ``[1, len(steps)]``, float32: root mean square over the nodes of the standard error, zero if
      the values are exact. It is also logged if anything was estimated.

    A walk follows edges in their direction and ends at a node without outgoing edges. Equal edges add up, self-loops
    count, and ``edge_weight`` is the weight of a step. (PyG's `AddRandomWalkPE` gives the same values on graphs without
    weights and repeated edges.)

    Reference: Dwivedi et al., *Graph Neural Networks with Learnable Structural and Positional Representations*, ICLR
    2022, arXiv:2110.07875, Section 3.2.

    Args:
        steps: Numbers of steps k ≥ 1.
        method: ``"exact"``, ``"estimate"``, or ``"auto"``: exact for up to 10,000 nodes, and for larger graphs exact as
            long as powers of P stay sparse; the remaining steps are estimated with ``2 / tol²`` random vectors.
        tol: Standard error of an estimate for even k, relative to the value; 0.05 takes 800 random vectors.
        seed: Seed of the random vectors. The result depends only on the graph and the settings.
        name: Prefix of the attributes.

    Raises:
        TypeError: If ``steps`` is one number, or the seed is not an integer.
        ValueError: If a setting is out of range, or a weight is negative.
    """

    adds = ("{name}_diagonal", "{name}_error")

    def __init__(
        self,
        steps: Sequence[int],
        method: str = "auto",
        tol: float = 0.05,
        seed: int = 0,
        name: str = "random_walk",
    ) -> None:
        check_method(method, tol)
        check_name(name)
        self.steps, self.method, self.tol = check_steps(steps, 1), method, tol
        self.seed, self.name = check_integer("seed", seed), name

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        found = return_probabilities(batch, self.steps, method=self.method, tol=self.tol, seed=self.seed)
        return _with_error(self.name, found, batch)


class AddHeatDiagonalEncoding(Encoding):
    r"""Add the remaining heat :math:`(e^{-tL})_{ii}`, minus its limit for :math:`t \to \infty`, to a graph.

    Adds:

    - ``heat_diagonal`` ``[N, len(times)]``, float32: :math:`\sum_{\lambda_k > 0} e^{-t\lambda_k} u_k(i)^2` of
      :math:`L = D - A`
    - ``heat_error`` ``[1, len(times)]``, float32: root mean square over the nodes of the standard error, zero if the
      values are exact. It is also logged if anything was estimated.

    In a directed graph, a pair of nodes has the larger weight of both directions, as in GraphGPS. Equal edges add up,
    self-loops are ignored, and ``edge_weight`` is used.

    Reference: Kreuzer et al., *Rethinking Graph Transformers with Spectral Attention*, NeurIPS 2021,
    arXiv:2106.03893, Section 2; the constant part is left out as in GraphGPS's HKdiagSE.

    Args:
        times: Diffusion times t ≥ 0.
        method: ``"exact"``, ``"estimate"``, or ``"auto"``: exact for up to 10,000 nodes.
        tol: Standard error of an estimate relative to the value; 0.05 takes 800 random vectors.
        seed: Seed of the random vectors. The result depends only on the graph and the settings.
        name: Prefix of the attributes.

    Raises:
        TypeError: If the seed is not an integer.
        ValueError: If a setting is out of range, a weight is negative, or a time multiplied by a node's strength (sum
            of its edge weights) exceeds about 2e7.
    """

    adds = ("{name}_diagonal", "{name}_error")

    def __init__(
        self, times: Sequence[float], method: str = "auto", tol: float = 0.05, seed: int = 0, name: str = "heat"
    ) -> None:
        check_method(method, tol)
        check_name(name)
        self.times = [float(time) for time in times]
        if not self.times or not all(0 <= time < float("inf") for time in self.times):
            raise ValueError(f"'times' must be finite numbers ≥ 0, at least one (got {list(times)})")
        self.method, self.tol, self.seed, self.name = method, tol, check_integer("seed", seed), name

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        found = heat_diagonals(batch, self.times, method=self.method, tol=self.tol, seed=self.seed)
        return _with_error(self.name, found, batch)


def _with_error(name: str, found: Diagonals, batch: GraphBatch) -> list[dict[str, Tensor]]:
    result = []
    for value, error in zip(split_rows(found.value, batch.sizes), found.error.split(batch.sizes)):
        root = error.square().sum(dim=0, keepdim=True).div(max(value.size(0), 1)).sqrt()  # [1, K]
        if bool((root > 0).any()):
            log.info(
                "%s of %d nodes: estimated, largest root mean square error %.2g of values with mean %.2g",
                f"{name}_diagonal",
                value.size(0),
                float(root.max()),
                float(value[:, int(root.argmax())].mean()),
            )
        result.append({f"{name}_diagonal": value, f"{name}_error": root})
    return result
