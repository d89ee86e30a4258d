"""Dynamic GKAT: walks that are drawn again and follow the attention of a layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_topomask.checks import check_integer


def redraw_walks(
    graphs: Sequence[Data],
    transform: Any,
    epoch: int,
    layer: Module,
    forward: Callable[[Batch], Any],
    batch_size: int = 32,
) -> list[Data]:
    """Draw new walks whose steps follow a layer's attention: from a node to its neighbours, in proportion to it.

    The layer's inputs come from one pass of the model over the given graphs. Only edges are scored, so the cost is
    linear in them.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5, dynamic GKAT.

    Args:
        graphs: Graphs with walks from an earlier call of ``transform``; they are not changed.
        transform: :class:`~pyg_topomask.transforms.AddRandomWalks` with ``transition=`` set to the name of the edge
            attribute that will hold the attention.
        epoch: Number of the epoch. With a ``seed``, walks are a function of (seed, epoch, graph, attention).
        layer: Layer with ``edge_attention(x, edge_index)``, such as :class:`GKATAttention` or :class:`GKATConv`.
        forward: Function that runs the model with ``layer`` on a batch. Set the model to evaluation mode before.
        batch_size: Graphs in one pass.

    Returns:
        New graphs, in the same order.

    Raises:
        TypeError: If ``batch_size`` is not an integer.
        ValueError: If ``batch_size`` is below 1, or if the model does not call the layer exactly once.
    """
    batch_size = check_integer("batch_size", batch_size, 1)
    weights: list[Tensor] = []
    for first in range(0, len(graphs), batch_size):
        batch = Batch.from_data_list(list(graphs[first : first + batch_size]))
        weight = _attention_on_edges(batch, layer, forward)
        weights += weight.split([graph.num_edges for graph in graphs[first : first + batch_size]])
    return walks_along(graphs, transform, epoch, weights)


def walks_along(graphs: Sequence[Data], transform: Any, epoch: int, weights: Sequence[Tensor]) -> list[Data]:
    """Draw new walks along edges, in proportion to given weights.

    Args:
        graphs: Graphs; they are not changed.
        transform: :class:`~pyg_topomask.transforms.AddRandomWalks` with ``transition=`` set.
        epoch: Number of the epoch.
        weights: For each graph the weights of its edges, shape ``[E]``, ≥ 0, stored as the new graph's attribute
            ``transform.transition``.

    Returns:
        New graphs, in the same order.
    """
    transform.set_epoch(epoch)
    copies = [graph.clone() for graph in graphs]
    for graph, weight in zip(copies, weights, strict=True):
        graph[transform.transition] = weight
    return transform.apply(copies)


def _attention_on_edges(batch: Batch, layer: Module, forward: Callable[[Batch], Any]) -> Tensor:
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(
        lambda _, args, named: inputs.append(args[0] if args else named["x"]), with_kwargs=True
    )
    try:
        with torch.no_grad():
            forward(batch)
    finally:
        handle.remove()
    if len(inputs) != 1:
        raise ValueError(f"the model must call the layer once in a pass (it did {len(inputs)} times)")
    weight: Tensor = layer.edge_attention(inputs[0], batch.edge_index.to(inputs[0].device))  # type: ignore[operator]
    return weight.to(batch.edge_index.device)
