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

    Adds to the ``Data`` ``position`` ``[N]``, of torch's default dtype, on the graph's device. Only differences of
    positions matter to the mask, so positions that PyG's ``subgraph`` takes from a larger graph stay valid. Large
    positions that this dtype would round by more than a millionth of their range, such as times since 1970, are counted
    from the smallest one.

    Args:
        source: Name of a node attribute ``[N]`` with the positions, such as times or residue numbers. If :obj:`None`,
            the position is the number of the node in its graph.

    Raises:
        ValueError: If the attribute is missing, does not have one finite number per node, or the graph is a batch.
        TypeError: If the graph is a ``HeteroData``.
    """

    adds = ("position",)

    def __init__(self, source: str | None = None) -> None:
        self.source = source

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        return [{"position": self._positions(graph)} for graph in graphs]

    def _positions(self, data: Data) -> Tensor:
        num_nodes, dtype = num_nodes_of(data), torch.get_default_dtype()
        if self.source is None:
            check_one_graph(data, "AddPositions")
            device = next((value.device for value in data.to_dict().values() if isinstance(value, Tensor)), None)
            return torch.arange(num_nodes, dtype=dtype, device=device)
        found = data.get(self.source)
        if not isinstance(found, Tensor) or found.numel() != num_nodes or not bool(found.isfinite().all()):
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the attribute {self.source!r} must have one finite number per node, [{num_nodes}] ({got=})"
            )
        return _rounded(found.view(-1), dtype)


def _rounded(position: Tensor, dtype: torch.dtype) -> Tensor:
    """Positions of another dtype, counted from the smallest one if they would be rounded by too much."""
    rounded = position.to(dtype)
    if position.numel() == 0 or torch.equal(rounded.to(position.dtype), position):
        return rounded
    moved = (rounded.double() - position.double()).abs().max()
    span = position.max().double() - position.min().double()
    return rounded if moved <= 1e-6 * span else (position - position.min()).to(dtype)
