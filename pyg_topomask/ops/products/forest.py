"""The order in which sweeps visit the nodes of a rooted forest (`pyg_topomask.ops.products.trees`)."""

from __future__ import annotations

from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import on_host

# Forests of at least this depth are cut into bands. Below it, the second pass over all nodes costs more than it saves.
_MOST_LEVELS = 64


class Forest(NamedTuple):
    """A rooted forest whose nodes are sorted so that each step of a sweep reads one contiguous slice.

    The *top* of a node is the root of its band. Without bands, the tops are the roots.
    """

    order: Tensor
    """Nodes sorted by their level within the band, then by depth, shape ``[N]``."""
    position: Tensor
    """Inverse of `order`."""
    parent: Tensor
    """Position of the parent of each position, shape ``[N]``; 0 for roots."""
    starts: list[int]
    """First position of each level within the bands, followed by ``N``. The first level contains the tops."""
    top: Tensor
    """Position of the top of each position, shape ``[N]``."""
    top_starts: list[int]
    """First position of each band's tops, followed by the number of tops. The tops of the first band are the roots."""
    root: Tensor
    """Position of the root of each position, shape ``[N]``."""
    depth: Tensor
    """Depth of each position, shape ``[N]``."""

    @property
    def num_roots(self) -> int:
        """Number of trees; the roots have the first positions."""
        return self.top_starts[1]

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Ranges ``(start, stop)`` of positions of each level below the tops."""
        return list(pairwise(self.starts))[1:]

    @property
    def bands(self) -> list[tuple[int, int]]:
        """Ranges ``(start, stop)`` of positions of the tops of each band below the first."""
        return list(pairwise(self.top_starts))[1:]


@once_per_batch
@on_host
def build_forest(parent: Tensor) -> Forest:
    """Sort a forest for sweeps, once per batch.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``.

    Raises:
        TypeError: If ``parent`` does not hold integers.
        ValueError: If it has another shape, contains a node that does not exist, or has a cycle.
    """
    _check_parent(parent)
    depth = _depth(parent.long())
    num_levels = int(depth.max()) + 1 if depth.numel() else 1
    height = num_levels if num_levels <= _MOST_LEVELS else isqrt(num_levels - 1) + 1
    order = ((depth % height) * num_levels + depth).argsort(stable=True)
    position = order.argsort()
    above = parent.long().index_select(0, order)
    depth = depth.index_select(0, order)
    is_root = above < 0
    above = torch.where(is_root, 0, position.index_select(0, above.clamp(min=0)))
    starts = [0, *torch.bincount(depth % height, minlength=1).cumsum(0).tolist()]
    top = torch.arange(parent.numel(), device=parent.device)
    for begin, end in list(pairwise(starts))[1:]:
        top[begin:end] = top.index_select(0, above[begin:end])
    top_starts = [0, *torch.bincount(depth[: starts[1]] // height, minlength=1).cumsum(0).tolist()]
    root = top.clone()
    for begin, end in list(pairwise(top_starts))[1:]:
        root[begin:end] = root.index_select(0, top.index_select(0, above[begin:end]))
    return Forest(order, position, above, starts, top, top_starts, root.index_select(0, top), depth)


def previous_sibling(parent: Tensor) -> Tensor:
    """Node before each node among the children of its parent; −1 for first children and roots. Shape ``[N]``."""
    parent, order = parent.sort(stable=True)
    has_previous = (parent.diff() == 0) & (parent[1:] >= 0)
    before = torch.where(has_previous, order[:-1], -1)
    return torch.full_like(order, -1).index_copy(0, order[1:], before)


class SiblingOrder(NamedTuple):
    """A forest, and the forest of the paths that connect each node to its previous siblings."""

    tree: Forest
    siblings: Forest
    to_siblings: Tensor
    """Position in `tree` of each position in `siblings`, shape ``[N]``."""
    to_tree: Tensor
    """Inverse of `to_siblings`."""


@once_per_batch
@on_host
def sibling_order(parent: Tensor) -> SiblingOrder:
    """Sort a forest and its siblings for sweeps, once per batch. Raises the errors of `build_forest`."""
    tree = build_forest(parent)
    siblings = build_forest(previous_sibling(parent.long()))
    to_siblings = tree.position.index_select(0, siblings.order)
    return SiblingOrder(tree, siblings, to_siblings, to_siblings.argsort())


def _depth(parent: Tensor) -> Tensor:
    """Depth of each node, by pointer doubling."""
    num_nodes = parent.numel()
    above = torch.where(parent < 0, num_nodes, parent)
    above = torch.cat([above, above.new_full((1,), num_nodes)])
    depth = (above < num_nodes).long()
    for _ in range(num_nodes.bit_length() + 1):
        if bool((above == num_nodes).all()):
            return depth[:-1]
        depth = depth + depth.index_select(0, above)
        above = above.index_select(0, above)
    at = int((above[:-1] < num_nodes).nonzero()[0])
    raise ValueError(f"'parent' has a cycle above node {at}; the parent of a root must be −1")


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
