"""What the encodings have in common: they read a graph's edges, and serve one graph or thousands at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.ops.encodings.graph_batch import GraphBatch, join_graphs
from pyg_topomask.transforms.graph_input import edges_of, num_nodes_of


class Encoding(BaseTransform):
    """Base of the transforms that add an encoding: a function of edges, weights and the settings alone.

    A subclass says in `compute` what it adds to each of many graphs. Called on one graph it adds that; `encode` does
    the same for many graphs at a fraction of the time, with values equal to rounding.
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

    def encode(self, graphs: Sequence[Data]) -> list[Data]:
        """Copies of the graphs, sharing their tensors, with the encoding added; computed together."""
        order = sorted(range(len(graphs)), key=lambda place: num_nodes_of(graphs[place]))
        chosen = [graphs[place] for place in order]
        edges = [edges_of(graph) for graph in chosen]
        weights = [weight for _, weight in edges] if "edge_weight" in self.reads else None
        batch = join_graphs([edge for edge, _ in edges], [num_nodes_of(graph) for graph in chosen], weights)
        result = [copy.copy(graph) for graph in graphs]
        for place, added in zip(order, self.compute(batch, chosen)):
            device = result[place].edge_index.device if result[place].edge_index is not None else "cpu"
            for key, value in added.items():
                result[place][key] = value.to(device)
        return result

    def forward(self, data: Data) -> Data:
        return self.encode([data])[0]

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


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
