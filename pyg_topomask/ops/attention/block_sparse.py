"""Support of block-sparse attention: neighbouring, random and global blocks of nodes, in node order."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.hashing import GOLDEN, MIX_1, below, mix, wrap
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.sparse import Pattern


class _Blocks(NamedTuple):
    """A batch's graphs, each cut into blocks of consecutive nodes, the last one perhaps shorter."""

    graph: Tensor  # [M], graph of each block
    place: Tensor  # [M], place of the block in its graph
    total: Tensor  # [M], blocks of its graph
    start: Tensor  # [M], first node
    size: Tensor  # [M], nodes in the block
    num_nodes: Tensor  # [M], nodes of its graph


@once_per_batch
def block_sparse_support(batch: Tensor, block_size: int, num_random: int, seed: int) -> Pattern:
    """Pairs of nodes whose blocks see each other, built once per batch: a function of the graph's size and the seed.

    The nodes of each graph are cut, in order, into blocks. The first and the last see all blocks and are seen by all;
    every other block also sees itself, the one before, the one after, and up to ``num_random`` others.

    Cost: :math:`O(N b (5 + r))` pairs.

    Args:
        batch: Graph of each node, sorted, shape ``[N]``.
        block_size: Nodes per block, ``b``.
        num_random: Random blocks that each block sees, ``r``; distinct.
        seed: Seed of the random blocks.
    """
    blocks = _cut(batch, block_size)
    seen, per_block = _seen_blocks(blocks, num_random, seed)
    first = per_block.cumsum(0) - per_block  # of each block's list in `seen`
    block = torch.repeat_interleave(blocks.size)  # [N], block of each node
    row, entry = ragged_ranges(first[block], per_block[block])
    begin, size = blocks.start[seen[entry]], blocks.size[seen[entry]]
    pair, col = ragged_ranges(begin, size)
    return Pattern(row[pair], col, batch.numel(), batch.numel())


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def one_graph(num_nodes: int, device: torch.device) -> Tensor:
    """``batch`` of a single graph: the same tensor again, so that what is built once per batch is built once."""
    return torch.zeros(num_nodes, dtype=torch.long, device=device)


def _cut(batch: Tensor, block_size: int) -> _Blocks:
    size = torch.bincount(batch)
    ptr, num_blocks = size.cumsum(0) - size, (size + block_size - 1) // block_size
    graph, place = ragged_ranges(torch.zeros_like(num_blocks), num_blocks)
    start = ptr[graph] + place * block_size
    length = (size[graph] - place * block_size).clamp(max=block_size)
    return _Blocks(graph, place, num_blocks[graph], start, length, size[graph])


def _seen_blocks(blocks: _Blocks, num_random: int, seed: int) -> tuple[Tensor, Tensor]:
    """Blocks that each block sees, list after list, and the length of each list, shape ``[M]``."""
    place, last = blocks.place, blocks.total - 1
    is_global = (place == 0) | (place == last)
    before = torch.where(place > 1, place - 1, -1)
    after = torch.where(place + 1 < last, place + 1, -1)
    some = torch.stack([torch.zeros_like(place), before, place, after, last], dim=1)
    some = torch.cat([some, _random_blocks(blocks, num_random, seed)], dim=1)
    some = some.masked_fill(is_global[:, None], -1)
    owner, _ = (some >= 0).nonzero(as_tuple=True)
    all_owner, all_seen = ragged_ranges(torch.zeros_like(place), blocks.total * is_global)
    owner, order = torch.cat([owner, all_owner]).sort(stable=True)
    seen = torch.cat([some[some >= 0], all_seen])[order]
    block_of_graph = torch.arange(place.numel(), device=place.device) - place  # first block of each one's graph
    return seen + block_of_graph[owner], torch.bincount(owner, minlength=place.numel())


def _random_blocks(blocks: _Blocks, num_random: int, seed: int) -> Tensor:
    """Distinct blocks of each block's graph, not global nor next to it, shape ``[M, r]``; −1 where there are no more.

    Floyd's sampling without replacement (Bentley and Floyd, *Programming pearls: a sample of brilliance*, CACM 1987).
    """
    below_window = (blocks.place - 2).clamp(min=0)  # candidates 1 … place − 2, then place + 2 … total − 2
    candidates = below_window + (blocks.total - 3 - blocks.place).clamp(min=0)
    state = mix(mix(blocks.num_nodes * GOLDEN + wrap(seed + GOLDEN)) + (blocks.place + 1) * MIX_1)
    chosen = torch.full((blocks.place.numel(), num_random), -1, device=state.device)
    for step in range(num_random):
        top = candidates - num_random + step
        rank = below(mix(state + wrap((step + 1) * GOLDEN)), (top + 1).clamp(min=1))
        rank = torch.where((chosen == rank[:, None]).any(dim=1), top, rank)
        chosen[:, step] = rank.masked_fill(top < 0, -1)
    skip = blocks.place + 2 - below_window  # from the rank of a candidate after the window to its place
    block = chosen + torch.where(chosen < below_window[:, None], 1, skip[:, None])
    return block.masked_fill(chosen < 0, -1)
