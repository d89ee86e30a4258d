"""What the encodings have in common: they read a graph's edges, and serve one graph or thousands at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.encodings.graph_batch import GraphBatch, join_graphs
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import edges_of, num_nodes_of


class Encoding(GraphTransform):
    """Base of the transforms that add an encoding: a function of edges, weights and the settings alone.

    A subclass says in `compute` what it adds to each of many graphs. Values of a graph alone and among others are
    equal to rounding.
    """

    reads: ClassVar[tuple[str, ...]] = ("edge_index", "adj_t", "edge_weight", "num_nodes")
    """Attributes that the result depends on."""

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        """What is added to each graph.

        Args:
            batch: Their edges.
            graphs: The graphs, for what else is read.
        """
        raise NotImplementedError

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        order = sorted(range(len(graphs)), key=lambda place: num_nodes_of(graphs[place]))
        chosen = [graphs[place] for place in order]
        edges = [edges_of(graph) for graph in chosen]
        weights = [weight for _, weight in edges] if "edge_weight" in self.reads else None
        batch = join_graphs([edge for edge, _ in edges], [num_nodes_of(graph) for graph in chosen], weights)
        found: list[dict[str, Any]] = [{} for _ in graphs]
        for place, (edge, _), added in zip(order, edges, self.compute(batch, chosen)):
            found[place] = {key: value.to(edge.device) for key, value in added.items()}
        return found


def check_steps(steps: Sequence[int], least: int) -> list[int]:
    """Steps as a list.

    Raises:
        ValueError: If there are none, or one is not a whole number ≥ ``least``.
    """
    found = [int(step) for step in steps]
    if not found or any(step != given for step, given in zip(found, steps)) or min(found) < least:
        raise ValueError(f"'steps' must be whole numbers ≥ {least}, at least one (got {list(steps)})")
    return found


def split_rows(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """A tensor for each graph, with memory of its own, of a joined one with ``sizes`` rows for each."""
    return [part.clone() for part in rows.split(list(sizes))]
