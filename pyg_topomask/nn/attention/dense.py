"""Nodes in PyG's dense form or in a nested tensor, as the flat nodes that attentions compute with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import holds


def flat_nodes(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Flat nodes, graph after graph.

    Args:
        x: Nodes, shape ``[B, N, C]``, or a jagged nested tensor ``[B, j, C]``.
        mask: Which rows are nodes, boolean, shape ``[B, N]``; all if :obj:`None`, as for a nested tensor.

    Returns:
        The nodes ``[M, C]``; the graph of each, ``[M]``; and a function that brings a result ``[M, C]`` into the form
        of ``x``, with zeros where there is no node.

    Raises:
        ValueError: If the mask is not boolean or has another shape, or a nested tensor has a mask, gaps or another
            layout.
    """
    if x.is_nested:
        if mask is not None or x.layout != torch.jagged or x.lengths() is not None:  # type: ignore[attr-defined]
            raise ValueError(
                "a nested 'x' must have no mask, no gaps and the layout torch.jagged: build it by "
                "torch.nested.nested_tensor(…, layout=torch.jagged)"
            )
        values, offsets = x.values(), x.offsets()  # type: ignore[attr-defined]
        graph = torch.arange(x.size(0), device=values.device)
        batch = graph.repeat_interleave(offsets.diff(), output_size=values.size(0))
        return values, batch, lambda out: torch.nested.nested_tensor_from_jagged(out, offsets)
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        got = f"{list(mask.shape)}, {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"for 'x' [B, N, C], the mask must be boolean and of shape {list(x.shape[:2])} (got {got})")
    batch, place = mask.nonzero(as_tuple=True)
    shape = mask.shape
    return x[batch, place], batch, lambda out: out.new_zeros(*shape, out.size(1)).index_put((batch, place), out)


def check_same_batch(batch: Tensor, graph: Data | None) -> None:
    """Refuse a graph whose batch vector differs from that of the dense nodes. Raises ValueError."""
    own: Any = None if graph is None else graph.get("batch")
    message = "the graph must hold the nodes of 'x' in row order, but its 'batch' differs from the rows of the mask"
    if own is not None and (own.shape != batch.shape or not holds((own == batch).all(), message)):
        raise ValueError(message)
