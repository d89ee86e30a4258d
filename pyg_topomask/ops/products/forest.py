"""Rooted forests, and the steps by which sweeps visit their nodes (`pyg_topomask.ops.products.trees`)."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import on_host


class Forest(NamedTuple):
    """A rooted forest."""

    parent: Tensor
    """Parent of each node, itself for a root, int64, shape ``[N]``."""
    root: Tensor
    """Root of each node's tree, shape ``[N]``."""
    depth: Tensor
    """Number of edges from each node to its root, shape ``[N]``."""
    jumps: list[tuple[Tensor, Tensor]]
    """The nodes that have an ancestor 1, 2, 4, … edges above them, and this ancestor of each of them."""


@once_per_batch
@on_host
def build_forest(parent: Tensor) -> Forest:
    """A forest and the jumps of its sweeps, found once per batch.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``.

    Raises:
        TypeError: If ``parent`` does not hold integers.
        ValueError: If it has another shape, contains a node that does not exist, or has a cycle.
    """
    _check_parent(parent)
    above = torch.where(parent < 0, torch.arange(parent.numel(), device=parent.device), parent.long())
    jumps, top, depth, length = [], above, (parent >= 0).long(), 1
    while (node := (depth == length).nonzero().squeeze(1)).numel():  # a depth counts at most so many edges yet
        if length > parent.numel():
            raise ValueError(f"'parent' has a cycle above node {int(node[0])}; the parent of a root must be −1")
        jumps.append((node, top.index_select(0, node)))
        depth, top, length = depth + depth.index_select(0, top), top.index_select(0, top), 2 * length
    return Forest(above, top, depth, jumps)


@once_per_batch
@on_host
def sibling_forest(parent: Tensor) -> Forest:
    """The forest in which the parent of a node is the node before it among the children of its parent in a forest."""
    parent, order = parent.sort(stable=True)
    has_previous = (parent.diff() == 0) & (parent[1:] >= 0)
    before = torch.where(has_previous, order[:-1], -1)
    return build_forest(torch.full_like(order, -1).index_copy(0, order[1:], before))


def _check_parent(parent: Tensor) -> None:
    if parent.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"'parent' must hold integers, int64 or int32 (got {parent.dtype})")
    if parent.dim() != 1:
        raise ValueError(f"'parent' must have shape [N], one number per node (got {list(parent.shape)})")
    if parent.numel() == 0:
        return
    low, high = (int(bound) for bound in parent.aminmax())
    if low < -1 or high >= parent.numel():
        raise ValueError(
            f"'parent' contains node {low if low < -1 else high}, but nodes are 0 to {parent.numel() - 1}, "
            "and the parent of a root must be −1"
        )
