"""Positions of the nodes of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.graph_input import check_one_graph, num_nodes_of


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
