"""Edges of a random expander graph."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.ops.csr import stored_edges, to_csr
from pyg_topomask.ops.expander import EXPANDERS, complete_graph, spectral_gap
from pyg_topomask.ops.hashing import draw_seeds, hash_graphs
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import check_one_graph, edges_of, num_nodes_of

# The gap of larger graphs is not measured. A bad draw is less likely on larger graphs (of 660 draws of 1,000 and 5,000
# nodes, at degrees 1 to 11, none was bad), and measuring takes a second or more.
MAX_CHECKED_NODES = 2**17

# Tolerance of the second eigenvalue below the best value that a large regular graph can have.
_SLACK = 0.1


class AddExpanderEdges(GraphTransform):
    r"""Add the edges of a random regular expander graph, for :class:`~pyg_topomask.nn.ExphormerAttention`.

    By default, the expander graph is the union of ``degree`` random Hamiltonian cycles. It is connected, has no self
    loops, and every node has exactly ``2 * degree`` neighbours, counted with multiplicity (a pair of nodes that is
    adjacent in two cycles occurs twice). It is drawn again until its spectral gap is close to that of a Ramanujan
    graph, :math:`\lambda_2(D - A) \ge 2d - 2\sqrt{2d - 1} - 0.1`. Graphs of more than 131,072 nodes keep the first
    draw. Graphs of at most ``2 * degree + 1`` nodes get the complete graph; a single node gets no expander edge.

    Adds to the ``Data``, under PyG's collation rules:

    - ``expander_index`` ``[2, 2 * degree * N]`` (fewer columns if permutations have fixed nodes), int32: edges in both
      directions, sorted
    - ``expander_size``: the number of nodes that the edges were drawn for. PyG's samplers and ``subgraph`` copy
      ``expander_index`` unchanged, so the attention compares this number with the graph. Add the transform after all
      transforms that change nodes or edges, because PyG treats any table with one column per edge as edge features.
    - ``expander_virtual``: ``num_virtual``, if it is given

    Reference: Shirzad et al., *Exphormer: Sparse Transformers for Graphs*, ICML 2023, arXiv:2303.06147; as in the
    authors' code, ``degree`` counts cycles (or permutations), not neighbours. For the spectral gap of random
    cycles: Friedman, *A proof of Alon's second eigenvalue conjecture and related problems*, 2008.
    Cost: :math:`O(d N)`, plus the cost of the gap: an :math:`O(N^3)` eigenvalue problem up to 192 nodes, for larger
    graphs a Lanczos iteration of sparse products (0.2 ms at 60 nodes, 12 ms at 5,000 and 0.7 s at 100,000 on one core).

    Args:
        degree: Number of cycles ``d``. 5 by default, as in most of the authors' configs.
        num_virtual: Number of virtual nodes per graph in the attention, which refuses the graph if it has another
            number. With 0, the attention decides.
        seed: The edges depend only on (seed, graph), for any number of loader workers. With :obj:`None`, every call
            draws from torch's default generator.
        max_iters: Number of draws after which the best one is used. 100 by default, as in the authors' code.
        algorithm: ``"Hamiltonian"`` (cycles), or random permutations, whose fixed nodes get no self loop:
            ``"Random-d"`` uses one permutation for each degree (the authors' default), ``"Random-d-2"`` uses one
            permutation of ``degree`` copies of all nodes.

    Raises:
        ValueError: If a setting or the graph is out of range.
        TypeError: If the graph is a ``HeteroData``, or a count or seed is not an integer.
    """

    adds = ("expander_index", "expander_size", "expander_virtual")

    def __init__(
        self,
        degree: int = 5,
        num_virtual: int = 0,
        seed: int | None = None,
        max_iters: int = 100,
        algorithm: str = "Hamiltonian",
    ) -> None:
        degree, num_virtual = check_integer("degree", degree, 1), check_integer("num_virtual", num_virtual, 0)
        max_iters = check_integer("max_iters", max_iters, 1)
        seed = None if seed is None else check_integer("seed", seed)
        check_choice("algorithm", algorithm, EXPANDERS)
        self.degree, self.num_virtual, self.seed = degree, num_virtual, seed
        self.max_iters, self.algorithm = max_iters, algorithm

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        return [self._edges(graph) for graph in graphs]

    def _edges(self, data: Data) -> dict[str, Any]:
        num_nodes = num_nodes_of(data)
        check_one_graph(data, "AddExpanderEdges")
        edge_index = torch.empty(2, 0, dtype=torch.int64) if stored_edges(data) is None else edges_of(data)[0]
        if num_nodes <= 2 * self.degree + 1:
            index = complete_graph(num_nodes)
        else:
            csr, ptr = to_csr(edge_index, num_nodes), torch.tensor([0, num_nodes], device=edge_index.device)
            seed = draw_seeds(1) if self.seed is None else hash_graphs(csr, ptr, self.seed, 0)
            index = self._draw(num_nodes, torch.Generator().manual_seed(int(seed)))
        row, col = index[:, (index[0] * num_nodes + index[1]).argsort()]
        return {
            "expander_index": torch.stack([row, col]).int().to(edge_index.device),
            "expander_size": num_nodes,
            "expander_virtual": self.num_virtual or None,
        }

    def _draw(self, num_nodes: int, generator: torch.Generator) -> Tensor:
        """The first draw that expands well enough, or else the best of ``max_iters``."""
        neighbours = 2 * self.degree
        wanted = neighbours - 2 * sqrt(neighbours - 1) - _SLACK
        draw = EXPANDERS[self.algorithm]
        best, best_gap = draw(num_nodes, self.degree, generator), 0.0
        if num_nodes > MAX_CHECKED_NODES:
            return best
        index = best
        for _ in range(self.max_iters):
            gap = spectral_gap(index, num_nodes)
            if gap > best_gap:
                best, best_gap = index, gap
            if gap >= wanted:
                break
            index = draw(num_nodes, self.degree, generator)
        return best
