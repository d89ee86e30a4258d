"""Base of the encodings, which read a graph's edges and process one graph or thousands at once."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.encodings.graph_batch import GraphBatch, join_graphs
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import check_one_graph, edges_of, num_nodes_of


class Encoding(GraphTransform):
    """Base of the transforms that add an encoding, a function of only the edges, the weights and the settings.

    A subclass defines `compute`, which returns the additions of many graphs. The values of a graph do not depend on the
    other graphs, up to rounding.
    """

    reads: ClassVar[tuple[str, ...]] = ("edge_index", "adj_t", "edge_weight", "num_nodes")
    """Attributes that the result depends on."""

    needs_one_graph: ClassVar[bool] = False
    """Whether the values of a ``Batch`` would differ from those of its graphs, so that it is refused."""

    def compute(self, batch: GraphBatch, graphs: Sequence[Data]) -> list[dict[str, Tensor]]:
        """Attributes to add to each graph.

        Args:
            batch: The edges of the graphs.
            graphs: The graphs, for other attributes that are read.
        """
        raise NotImplementedError

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        order = sorted(range(len(graphs)), key=lambda position: num_nodes_of(graphs[position]))
        chosen = [graphs[position] for position in order]
        if self.needs_one_graph:
            for graph in chosen:
                check_one_graph(graph, type(self).__name__)
        edges = [edges_of(graph) for graph in chosen]
        weights = [weight for _, weight in edges] if "edge_weight" in self.reads else None
        batch = join_graphs([edge for edge, _ in edges], [num_nodes_of(graph) for graph in chosen], weights)
        found: list[dict[str, Any]] = [{} for _ in graphs]
        for position, (edge, _), added in zip(order, edges, self.compute(batch, chosen)):
            found[position] = {key: value.to(edge.device) for key, value in added.items()}
        return found


def check_steps(steps: Sequence[int], least: int) -> list[int]:
    """Steps as a list of integers.

    Raises:
        TypeError: If it is one number.
        ValueError: If there are none, or one is not a whole number ≥ ``least``.
    """
    if isinstance(steps, Integral):
        raise TypeError(
            f"'steps' must be a list of numbers (got {steps}); for all up to {steps}, use range({least}, {steps + 1})"
        )
    found = [int(step) for step in steps]
    if not found or any(step != given for step, given in zip(found, steps)) or min(found) < least:
        raise ValueError(f"'steps' must be whole numbers ≥ {least}, at least one (got {list(steps)})")
    return found


def split_rows(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Tensor for each graph, with its own memory, from a joined tensor with ``sizes`` rows per graph."""
    return [part.clone() for part in rows.split(list(sizes))]
