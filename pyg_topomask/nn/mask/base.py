"""What a mask module asks of a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.operators import MaskOperator


class Mask(Module):
    """A learnable topological mask: builds a :class:`MaskOperator` from a graph, called as ``mask(graph)``."""

    requires: tuple[str, ...] = ()
    """Attributes that the graph must carry."""
    remedy: str = ""
    """The transform that adds them, for error messages."""

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a graph or batch."""
        raise NotImplementedError

    def read(self, graph: Any) -> list[Tensor]:
        """The attributes of `requires`, in order.

        Raises:
            TypeError: If ``graph`` is not a homogeneous graph.
            ValueError: If one is missing; the message names the transform to add.
        """
        return read_attributes(type(self).__name__, graph, self.requires, f"the transform {self.remedy}")


def read_attributes(reader: str, graph: Any, names: tuple[str, ...], remedy: str) -> list[Tensor]:
    """Attributes ``names`` of a graph.

    Raises:
        TypeError: If ``graph`` is not a homogeneous graph.
        ValueError: If one is missing; the message says what to add.
    """
    if graph is None:
        raise ValueError(f"{reader} needs the graph: give it a Data or Batch, as in attn(x, batch, graph)")
    if not isinstance(graph, Data):
        raise TypeError(f"{reader} takes a Data or Batch (got {type(graph).__name__})")
    missing = [name for name in names if graph.get(name) is None]
    if missing:
        raise ValueError(f"{reader} needs {', '.join(map(repr, missing))} on the graph; add {remedy}")
    return [graph[name] for name in names]


def check_table_size(graph: Data, size: int | Tensor, remedy: str, what: str = "walks") -> None:
    """Refuse a table that was drawn for a graph of another size, such as the one that a sampler took this one from.

    On CPU at once; on CUDA by an assertion that does not wait.
    """
    ptr = graph.get("ptr")
    batched = isinstance(size, Tensor) and size.dim() == 1 and ptr is not None
    total = torch.as_tensor(size).sum()
    same = total == graph.num_nodes  # Batch.subgraph leaves ptr as it was
    if batched:
        same = same & (size == ptr.diff())
    message = (
        f"the {what} on this graph were drawn for {{}} nodes, but it has {graph.num_nodes}: samplers and subgraph() "
        f"copy them unchanged. Add {remedy} after sampling"
    )
    if same.is_cuda:
        torch._assert_async(same.all(), message.format("another number of"))
    elif not bool(same.all()):
        raise ValueError(message.format(int(total)))
