"""The shape of a grid graph, for masks of grids, and positions of the nodes of a sequence."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_grid_shape
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import check_one_graph, edges_of, num_nodes_of


class AddGridShape(GraphTransform):
    """Check that a graph is a grid with its nodes in row-major order, and add its shape.

    :class:`~pyg_topomask.nn.ToeplitzMask` and :class:`~pyg_topomask.nn.GridHeatMask` need it. A node of the grid is
    linked to the next node along every axis. Each edge may be stored in one direction or both. Self loops, repeated
    edges and edge weights are ignored. A path is a grid with one axis.

    Adds to the ``Data`` ``grid_shape`` ``[1, d]``, int64: the number of nodes along each axis. A batch has one row per
    graph.

    Cost: O(E log E).

    Args:
        grid_shape: ``(n_1, …, n_d)``. If :obj:`None`, the shape is found from the edges, and axes of one node are left
            out; all graphs of a batch need the same number of axes.

    Raises:
        ValueError: If an axis has no nodes, or a graph is not that grid.
        TypeError: If a size is not an integer, or the graph is a ``HeteroData``.
    """

    adds = ("grid_shape",)

    def __init__(self, grid_shape: Sequence[int] | None = None) -> None:
        self.grid_shape = None if grid_shape is None else check_grid_shape(grid_shape)

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        return [{"grid_shape": torch.tensor([self._shape(graph)])} for graph in graphs]

    def _shape(self, data: Data) -> tuple[int, ...]:
        num_nodes = num_nodes_of(data)
        edges = edges_of(data)[0].cpu().long()
        low, high = edges.amin(0), edges.amax(0)
        links = torch.unique((low * num_nodes + high)[low < high])
        shape = self.grid_shape
        if shape is None:
            shape = _shape_of(torch.unique(links % max(num_nodes, 1) - links // max(num_nodes, 1)).tolist(), num_nodes)
        if prod(shape) != num_nodes:
            raise ValueError(f"the graph has {num_nodes} nodes, but the grid {list(shape)} has {prod(shape)}")
        first, second = grid_links(shape)
        wanted = first * num_nodes + second
        both, count = torch.cat([links, wanted]).unique(return_counts=True)
        if bool((count < 2).any()):
            link = int(both[count < 2][0])
            problem = "lacks" if bool((wanted == link).any()) else "has the additional"
            raise ValueError(
                f"the graph is not the grid {list(shape)} with its nodes in row-major order: it {problem} link "
                f"{link // num_nodes} – {link % num_nodes}"
            )
        return shape


def _shape_of(strides: list[int], num_nodes: int) -> tuple[int, ...]:
    """The shape of the grid whose links connect nodes that are these numbers apart."""
    if num_nodes < 2:
        return (num_nodes,)
    ends = [*strides, num_nodes]
    if ends[0] != 1 or any(b % a or b == a for a, b in pairwise(ends)):
        raise ValueError(
            f"the graph of {num_nodes} nodes is not a grid with its nodes in row-major order: the numbers of linked "
            f"nodes differ by {strides[:8] or 'nothing, since it has no links'}"
        )
    return tuple(b // a for a, b in pairwise(ends))[::-1]


def grid_links(shape: tuple[int, ...]) -> Tensor:
    """Each link of a grid once, ``[2, L]``, from every node to the next one along each axis, the last axis first."""
    node = torch.arange(prod(shape)).view(shape)
    ends = [
        [node.narrow(axis, min(start, size), max(size - 1, 0)).flatten() for start in (0, 1)]
        for axis, size in reversed(list(enumerate(shape)))
    ]
    return torch.cat([torch.stack(pair) for pair in ends], dim=1)


class AddPositions(GraphTransform):
    """Add the position of each node in its sequence, for :class:`~pyg_topomask.nn.LowRankMask`.

    Adds to the ``Data`` ``position`` ``[N]``, the number of the node in its graph, of torch's default dtype, on the
    graph's device. Only differences of positions matter to the mask, so positions that PyG's ``subgraph`` takes from a
    larger graph stay valid. Other positions, such as times, are set as ``data.position`` without this transform.

    Raises:
        ValueError: If the graph is a batch.
        TypeError: If the graph is a ``HeteroData``.
    """

    adds = ("position",)

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        return [{"position": _positions(graph)} for graph in graphs]


def _positions(data: Data) -> Tensor:
    check_one_graph(data, "AddPositions")
    device = next((value.device for value in data.to_dict().values() if isinstance(value, Tensor)), None)
    return torch.arange(num_nodes_of(data), dtype=torch.get_default_dtype(), device=device)
