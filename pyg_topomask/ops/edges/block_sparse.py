"""Support of block-sparse attention: neighbouring, random and global blocks of consecutive nodes."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.hashing import GOLDEN, MIX_1, below, mix, wrap
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import ragged_ranges, segments
from pyg_topomask.ops.sparse import Pattern


class _Blocks(NamedTuple):
    """The graphs of a batch, each cut into blocks of consecutive nodes; the last block of a graph may be shorter."""

    graph: Tensor  # [M], graph of each block
    number: Tensor  # [M], number of the block within its graph
    total: Tensor  # [M], number of blocks of its graph
    start: Tensor  # [M], first node
    size: Tensor  # [M], number of nodes in the block
    num_nodes: Tensor  # [M], number of nodes of its graph


@once_per_batch
def block_sparse_support(batch: Tensor, block_size: int, num_random: int, seed: int) -> Pattern:
    """Pairs of nodes whose blocks attend to each other, a function of the graph's size and the seed.

    The nodes of each graph are cut, in order, into blocks. The first and the last block attend to all blocks, and all
    blocks attend to them. Every other block also attends to itself, to both neighbours, and to up to ``num_random``
    other blocks.

    Cost: :math:`O(N b (5 + r))` pairs.

    Args:
        batch: Graph of each node, sorted, shape ``[N]``.
        block_size: Number ``b`` of nodes per block.
        num_random: Number ``r`` of distinct random blocks to which each block attends.
        seed: Seed of the random blocks.
    """
    blocks = _cut(segments(batch).ptr, block_size)  # on CPU, where no size that depends on values makes CUDA wait
    seen, per_block = _seen_blocks(blocks, num_random, seed)
    ends = torch.cat([seen.new_zeros(1), blocks.size[seen].cumsum(0)])
    first = per_block.cumsum(0) - per_block  # index of each block's list in `seen`
    num_rows = int((blocks.size * per_block).sum())
    num_pairs = int((blocks.size * (ends[first + per_block] - ends[first])).sum())
    tables = per_block, first, seen, blocks.start, blocks.size
    per_block, first, seen, start, size = (x.to(batch.device, non_blocking=True) for x in tables)
    block = torch.repeat_interleave(size, output_size=batch.numel())  # [N], block of each node
    row, entry = ragged_ranges(first[block], per_block[block], num_rows)
    pair, col = ragged_ranges(start[seen[entry]], size[seen[entry]], num_pairs)
    return Pattern(row[pair], col, batch.numel(), batch.numel())


def _cut(ptr: list[int], block_size: int) -> _Blocks:
    size = torch.tensor(ptr, dtype=torch.int64, device="cpu").diff()
    start, num_blocks = size.cumsum(0) - size, (size + block_size - 1) // block_size
    graph, number = ragged_ranges(torch.zeros_like(num_blocks), num_blocks)
    start = start[graph] + number * block_size
    length = (size[graph] - number * block_size).clamp(max=block_size)
    return _Blocks(graph, number, num_blocks[graph], start, length, size[graph])


def _seen_blocks(blocks: _Blocks, num_random: int, seed: int) -> tuple[Tensor, Tensor]:
    """Lists of the blocks to which each block attends, concatenated, and the length of each list, shape ``[M]``."""
    number, last = blocks.number, blocks.total - 1
    is_global = (number == 0) | (number == last)
    before = torch.where(number > 1, number - 1, -1)
    after = torch.where(number + 1 < last, number + 1, -1)
    some = torch.stack([torch.zeros_like(number), before, number, after, last], dim=1)
    some = torch.cat([some, _random_blocks(blocks, num_random, seed)], dim=1)
    some = some.masked_fill(is_global[:, None], -1)
    owner, _ = (some >= 0).nonzero(as_tuple=True)
    all_owner, all_seen = ragged_ranges(torch.zeros_like(number), blocks.total * is_global)
    owner, order = torch.cat([owner, all_owner]).sort(stable=True)
    seen = torch.cat([some[some >= 0], all_seen])[order]
    block_of_graph = torch.arange(number.numel(), device=number.device) - number  # first block of the graph
    return seen + block_of_graph[owner], torch.bincount(owner, minlength=number.numel())


def _random_blocks(blocks: _Blocks, num_random: int, seed: int) -> Tensor:
    """Distinct random blocks that are neither global nor neighbours, shape ``[M, r]``; −1 if there are no more.

    Floyd's sampling without replacement (Bentley and Floyd, *Programming pearls: a sample of brilliance*, CACM 1987).
    """
    below_window = (blocks.number - 2).clamp(min=0)  # candidates 1 … number − 2, then number + 2 … total − 2
    candidates = below_window + (blocks.total - 3 - blocks.number).clamp(min=0)
    state = mix(mix(blocks.num_nodes * GOLDEN + wrap(seed + GOLDEN)) + (blocks.number + 1) * MIX_1)
    chosen = torch.full((blocks.number.numel(), num_random), -1, device=state.device)
    for step in range(num_random):
        top = candidates - num_random + step
        rank = below(mix(state + wrap((step + 1) * GOLDEN)), (top + 1).clamp(min=1))
        rank = torch.where((chosen == rank[:, None]).any(dim=1), top, rank)
        chosen[:, step] = rank.masked_fill(top < 0, -1)
    skip = blocks.number + 2 - below_window  # from the rank of a candidate after the window to its number
    block = chosen + torch.where(chosen < below_window[:, None], 1, skip[:, None])
    return block.masked_fill(chosen < 0, -1)
