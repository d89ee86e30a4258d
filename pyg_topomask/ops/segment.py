"""Sums over the graphs of a batch, without padding the graphs to one size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.checks import holds
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import permute_rows, row_pointers

# Nodes per block of `segment_linear_attention`. 32 or 64 are fastest on CPU; 32 wastes less on small graphs.
_BLOCK = 32

_UNSORTED = "'batch' must be sorted: sort nodes by graph first, for example with batch.argsort(stable=True)"

# If one graph's and head's state has more numbers than this, graphs of equal size are stacked instead. On CPU, filling
# blocks then costs more than one call for each size (97 × 97: 437 ms in blocks, 210 ms by size; 25 × 25: 46 and 49 ms).
_WIDE_STATE = 2**12


class Segments(NamedTuple):
    """A batch's graphs, each split into blocks of at most 32 nodes."""

    ptr: list[int]
    """First node of each graph, followed by the number of nodes: ``B + 1`` numbers."""
    slot: Tensor
    """Position of each node in the padded blocks, shape ``[N]``."""
    block_graph: Tensor
    """Graph of each block, shape ``[number of blocks]``."""
    one_block_each: bool
    """Whether every graph fits into one block."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs ``B``."""
        return len(self.ptr) - 1


class SizeGroups(NamedTuple):
    """A batch's graphs, stacked by equal size unless most graphs differ in size."""

    order: Tensor | None
    """Nodes sorted by the size of their graph, shape ``[N]``; :obj:`None` if they already are."""
    inverse: Tensor | None
    """Inverse of `order`."""
    graphs: list[list[int]]
    """Graphs of each group, without empty ones."""
    num_nodes: list[int]
    """Number of nodes of every graph, including empty ones."""

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Number of graphs ``g`` of each group, and number of nodes ``n`` of each of them."""
        return [(len(graphs), self.num_nodes[graphs[0]]) for graphs in self.graphs]

    def split(self, x: Tensor) -> list[Tensor]:
        """Rows of ``x`` ``[N, *]`` of each group, ``[g, n, *]``."""
        if not self.graphs:
            return []
        parts = permute_rows(x, self.order, self.inverse).split([g * n for g, n in self.shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes)]


def check_batch(batch: Tensor, num_nodes: int) -> None:
    """Refuse a ``batch`` vector that does not sort ``num_nodes`` nodes by graph.

    Raises:
        TypeError: If it does not hold integers.
        ValueError: If it has another length, or is not sorted (checked immediately on CPU, asynchronously on CUDA).
    """
    if batch.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"'batch' must hold the integer graph of each node (got {batch.dtype})")
    if batch.dim() != 1 or batch.numel() != num_nodes:
        raise ValueError(f"'batch' must have shape [{num_nodes}], one graph per node (got {list(batch.shape)})")
    if not _is_sorted(batch):
        raise ValueError(_UNSORTED)


@partial(once_per_batch, traced=True)
def _is_sorted(batch: Tensor) -> bool:
    """Whether a batch vector is sorted and not negative; see `holds`."""
    return holds((batch.diff(prepend=batch.new_zeros(1)) >= 0).all(), _UNSORTED)


@once_per_batch
def segments(batch: Tensor) -> Segments:
    """Blocks of a batch vector that `check_batch` accepts, computed once per batch."""
    check_batch(batch, batch.numel())
    ptr = row_pointers(batch, int(batch[-1]) + 1 if batch.numel() else 0).long()
    ends, num_blocks = ptr.tolist(), (ptr.diff() + _BLOCK - 1) // _BLOCK  # on CUDA, only these two lines wait
    first = _offsets(num_blocks) * _BLOCK
    slot = torch.arange(batch.numel(), device=batch.device) + (first[:-1] - ptr[:-1]).index_select(0, batch)
    counts = [-(-(b - a) // _BLOCK) for a, b in pairwise(ends)]
    block_graph = torch.repeat_interleave(num_blocks, output_size=sum(counts))
    return Segments(ends, slot, block_graph, all(count == 1 for count in counts))


def size_groups(batch: Tensor | int) -> SizeGroups:
    """Groups of a checked batch vector, computed once per batch, or of one graph with the given number of nodes."""
    if isinstance(batch, int):
        return SizeGroups(None, None, [[0]] if batch else [], [batch])
    return _size_groups(batch)


def group_sizes(batch: Tensor | int) -> tuple[int, list[int]]:
    """Number of `size_groups`, and number of nodes of every graph; cheaper than the groups themselves."""
    if isinstance(batch, int):
        return min(batch, 1), [batch]
    groups, size = _grouped(batch)
    return len(groups), size


def in_groups(
    function: Callable[[list[int], Tensor, Tensor, Tensor], Tensor], groups: SizeGroups, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Attention within each graph, by a function that is called once for all graphs of the same size ``n``.

    The inputs are split once and the results are joined once. Otherwise, the backward pass would fill an array of the
    whole batch for each graph.

    Args:
        function: Takes the graphs of a group and their ``q, k [g, H, n, R]`` and ``v [g, H, n, D]``; returns
            ``[g, H, n, D]``.
        groups: The batch's groups.
        q, k: Shape ``[N, H, R]``.
        v: Shape ``[N, H, D]``.

    Returns:
        Shape ``[N, H, D]``.
    """
    if not groups.graphs:
        return v.clone()
    out = []
    for graphs, *qkv in zip(groups.graphs, *(groups.split(x) for x in (q, k, v))):
        result = function(graphs, *(x.transpose(1, 2) for x in qkv))
        out.append(result.transpose(1, 2).flatten(0, 1))
    return permute_rows(out[0] if len(out) == 1 else torch.cat(out), groups.inverse, groups.order)


def ragged_ranges(first: Tensor, count: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """For ranges of ``count[i]`` numbers from ``first[i]`` on: the ``i`` of each number, and the number itself.

    With the ``total`` of the counts, nothing waits for them on CUDA.
    """
    owner = torch.repeat_interleave(count, output_size=total)
    offset = first - (count.cumsum(0) - count)
    return owner, torch.arange(owner.numel(), device=owner.device) + offset[owner]


def split_by_count(count: Tensor, limit: int) -> list[int]:
    """Lengths of consecutive parts of ``[N]`` counts; the counts of a part add up to about ``limit``."""
    part = (count.cumsum(0) - count) // max(limit, 1)
    return part.unique_consecutive(return_counts=True)[1].tolist()


def segment_sum(x: Tensor, batch: Tensor) -> Tensor:
    """Sum of the rows of ``x`` ``[N, *]`` over each graph of ``batch``: shape ``[B, *]``."""
    num_graphs = segments(batch).num_graphs
    return x.new_zeros(num_graphs, *x.shape[1:]).index_add_(0, batch, x)


def segment_mean(x: Tensor, batch: Tensor | None, num_graphs: int) -> Tensor:
    """Mean of the rows of ``x`` ``[N, *]`` over each graph: shape ``[B, *]``; 0 for a graph without nodes.

    Args:
        x: Rows, floating point.
        batch: Graph of each row, sorted; one graph if :obj:`None`.
        num_graphs: ``B``. Since it is given, nothing waits for the values in ``batch``.
    """
    if batch is None:
        return x.sum(dim=0, keepdim=True) / max(x.size(0), 1)
    count = x.new_zeros(num_graphs).index_add_(0, batch, x.new_ones(x.size(0))).clamp(min=1)
    total = x.new_zeros(num_graphs, *x.shape[1:]).index_add_(0, batch, x)
    return total / count.view(-1, *[1] * (x.dim() - 1))


def segment_max(x: Tensor, batch: Tensor) -> Tensor:
    """Largest row of ``x`` ``[N, *]`` in each graph of ``batch``: shape ``[B, *]``; −inf for a graph without nodes."""
    num_graphs = segments(batch).num_graphs
    graph = batch.long().view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return x.new_full((num_graphs, *x.shape[1:]), -torch.inf).scatter_reduce(0, graph, x, "amax")


def segment_linear_attention(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> Tensor:
    r"""Sums :math:`\sum_j (q_i \cdot k_j) v_j` over the nodes ``j`` of each node's own graph.

    Nodes are placed in blocks of 32 that do not cross graphs. Each block's ``k v^T`` is one small matrix product, and
    blocks are summed by graph. This is faster than padding whole graphs to one size even if sizes are similar, and far
    faster if they are not. On CPU, wide heads are multiplied graph by graph, without blocks.

    Cost: :math:`O(N R D)` operations per head; :math:`O(N (R + D) + (N / 32 + B) R D)` memory.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        Shape ``[N, H, D]``.
    """
    if batch is None:
        state = torch.einsum("nhr,nhd->hrd", k, v)
        return torch.einsum("nhr,hrd->nhd", q, state)
    if q.device.type == "cpu" and q.size(-1) * v.size(-1) > _WIDE_STATE:
        return in_groups(lambda _, q, k, v: q @ (k.transpose(-1, -2) @ v), size_groups(batch), q, k, v)
    seg, heads = segments(batch), q.size(1)
    slot = _head_slots(batch, heads)
    q, k, v = (_to_blocks(x, slot, seg.block_graph.numel() * heads) for x in (q, k, v))  # [blocks H, 32, *]
    state = k.mT @ v
    if not seg.one_block_each:
        state = state.unflatten(0, (-1, heads))
        state = state.new_zeros(seg.num_graphs, *state.shape[1:]).index_add(0, seg.block_graph, state)
        state = state.index_select(0, seg.block_graph).flatten(0, 1)
    return (q @ state).flatten(0, 1).index_select(0, slot).unflatten(0, (-1, heads))


@once_per_batch
def _head_slots(batch: Tensor, heads: int) -> Tensor:
    """Position of each node and head in blocks ``[blocks, H, 32]``, shape ``[N H]``."""
    slot = segments(batch).slot[:, None]
    head = torch.arange(heads, device=batch.device)
    return ((slot // _BLOCK * heads + head) * _BLOCK + slot % _BLOCK).flatten()


def _to_blocks(x: Tensor, slot: Tensor, num_blocks: int) -> Tensor:  # [N, H, *] -> [blocks H, 32, *]
    padded = x.new_zeros(num_blocks * _BLOCK, x.size(-1))
    return padded.index_copy(0, slot, x.reshape(slot.numel(), x.size(-1))).unflatten(0, (-1, _BLOCK))


@once_per_batch
def _grouped(batch: Tensor) -> tuple[list[list[int]], list[int]]:
    """`SizeGroups.graphs` and `SizeGroups.num_nodes`."""
    size = [b - a for a, b in pairwise(segments(batch).ptr)]
    by_size = sorted((graph for graph in range(len(size)) if size[graph]), key=size.__getitem__)
    groups = [list(group) for _, group in groupby(by_size, key=size.__getitem__)]
    if len(by_size) < 2 * len(groups):  # too few graphs of equal size to be worth moving
        groups = [[graph] for graph in sorted(by_size)]
    return groups, size


@once_per_batch
def _size_groups(batch: Tensor) -> SizeGroups:
    groups, size = _grouped(batch)
    ptr, graphs = segments(batch).ptr, [graph for group in groups for graph in group]
    order = inverse = None
    if graphs != sorted(graphs):
        rows = [torch.arange(ptr[graph], ptr[graph + 1], device="cpu") for graph in graphs]
        order = torch.cat(rows).to(batch.device, non_blocking=True)
        inverse = order.argsort()
    return SizeGroups(order, inverse, groups, size)


def _offsets(size: Tensor) -> Tensor:
    return torch.cat([size.new_zeros(1), size.cumsum(0)])
