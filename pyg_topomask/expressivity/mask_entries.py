"""Mask entries as relations between nodes, for attention that reads the graph through a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.expressivity.refinement import Array, EncodedGraph
from pyg_topomask.operators import MaskOperator

Mask = Callable[[Data], MaskOperator | Tensor]
"""Function from a graph to its mask, an operator or a matrix ``[N, N]`` or ``[H, N, N]``."""


def dense_entries(mask: Mask, data: Data) -> Array:
    """The mask of a graph as an array ``[H, N, N]``, float64.

    Raises:
        TypeError: If it is neither an operator nor a tensor of real numbers.
        ValueError: If it has another shape, or holds NaN or infinity.
    """
    num_nodes = int(data.num_nodes or 0)
    with torch.no_grad():
        found = mask(data)
        if not isinstance(found, MaskOperator | Tensor):
            raise TypeError(f"'mask' must return a MaskOperator or a tensor (got {type(found).__name__})")
        dense = found.to_dense()
    if dense.is_complex():
        raise TypeError(f"'mask' must be real (got {dense.dtype})")
    dense = dense.detach().cpu().double()
    if dense.dim() not in (2, 3) or dense.shape[-2:] != (num_nodes, num_nodes):
        raise ValueError(f"'mask' must be [N, N] or [H, N, N] with N = {num_nodes} (got {tuple(dense.shape)})")
    if not bool(dense.isfinite().all()):
        raise ValueError("'mask' holds NaN or infinity")
    return (dense[None] if dense.dim() == 2 else dense).numpy()


def check_mask_follows(entries: Array, moved: Array, perm: Array, tolerance: float) -> None:
    """Raise a ValueError if the mask of a relabelled copy is not the relabelled mask."""
    expected = entries[:, perm][:, :, perm]
    if (np.abs(moved - expected) > tolerance * np.maximum(1.0, np.abs(expected))).any():
        raise ValueError(
            "'mask' differs between a graph and a relabelled copy of it, because it depends on chance, as sampled "
            "walks do, or on the numbering of nodes. Results under it would be unreliable; give the mask's expectation"
        )


def with_mask_entries(graphs: Sequence[EncodedGraph], entries: Sequence[Array], tolerance: float) -> list[EncodedGraph]:
    """The graphs with M_vu as encoding of each edge from u to v, and of the other pairs with |M_vu| > tolerance."""
    encodings = {key: rows for graph in graphs for key, rows in graph.edge.items()}
    result = []
    for graph, matrix in zip(graphs, entries):
        source, target = graph.edge_index
        other: Array = np.any(np.abs(matrix) > tolerance, axis=0)
        other[target, source] = False
        more = np.stack(other.nonzero()[::-1])  # edges point from column to row
        pairs = np.concatenate([graph.edge_index, more], axis=1)
        edge = {"is_edge": (np.arange(pairs.shape[1]) < source.size).astype(np.int64)[:, None]}
        for key, rows in encodings.items():
            own = graph.edge.get(key, rows[:0])
            edge[key] = np.concatenate([own, np.zeros((more.shape[1], rows.shape[1]), rows.dtype)])
        edge["mask"] = matrix[:, pairs[1], pairs[0]].T
        result.append(EncodedGraph(graph.num_nodes, pairs, graph.node, edge))
    return result
