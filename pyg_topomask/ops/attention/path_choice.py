"""The path of attention under a mask with the least estimated cost."""

from __future__ import annotations

from torch import Tensor

from pyg_topomask.ops.attention import feature_pairs, fused_pairs, linear_blocks
from pyg_topomask.ops.attention.mask import PAIRS_PER_NUMBER, AttentionMask
from pyg_topomask.ops.blocks import count_block_entries
from pyg_topomask.ops.segment import group_sizes

# Dense blocks are used up to this many entries per number that the mask stores, so that memory stays proportional to
# the stored numbers. Measured on CPU in plain torch, 2 layers on a new batch, with masks of walks: blocks were 1.3 to
# 1.9 times as fast as pairs with 1.6 and 2.9 entries per number (0.9 to 1.0 times for 128 graphs of 109 nodes and 8
# heads), and 1.0 to 1.4 times with 3.6 and 5.7.
BLOCK_ENTRIES = 4

# Cost of one more size of graphs in blocks, in entries. Measured on CPU with 4 heads, forward and backward, 3 layers on
# a new batch in plain torch: 0.11 µs per entry and 0.75 ms per size, against 0.28 µs per pair, of which there are about
# as many as stored numbers.
_ENTRIES_PER_SIZE = 7000

# Without a sparse support, blocks are formed instead of the factored path's intermediate if they have fewer entries, up
# to this many. Measured on CPU with 4 heads: an entry takes 8 ns, forward and backward, a number of the other 10 to 14.
_MOST_BLOCK_ENTRIES = 2**22

# Entries of blocks, for each size of graphs, above which blocks of constant masks of walks are faster than pairs if
# compiled code makes the blocks and serves both. Measured on CPU with new batches, forward and backward: 1.3 times as
# fast for graphs of 109 nodes, as fast for 128 graphs of 50 nodes and 4 sizes, 0.9 times as fast with 16 sizes.
_COMPILED_BLOCK_ENTRIES = 2**16

# Such blocks may have more than `BLOCK_ENTRIES` entries per stored number, up to this many (128 MiB in float32), if
# walks that meet at hubs make pairs of most nodes. Measured on CPU for 18.6 million entries, 4 heads, 16 features and
# 16 channels: 161 MiB at the peak, where pairs took 187 and the factored path 435.
_MOST_COMPILED_BLOCK_ENTRIES = 2**25

# They are then taken for up to so many entries per term of the mask's pairs, if their cost (for an entry, its features
# and channels and this overhead) is at most that of the factored path (so much for each multiply-add). Pairs must be
# listed before they can be counted. Measured on CPU with new batches of 1 to 16 graphs of 256 to 3,000 nodes, two
# layers, forward and backward, 1 to 8 heads: where blocks are taken, they took 0.1 to 1.1 times as long as the factored
# path and 0.4 to 1.4 times as long as pairs; with 10 entries per term, twice as long as pairs.
_BLOCK_ENTRIES_PER_TERM = 3
_BLOCK_OVERHEAD = 20
_FACTORED_COST_IN_BLOCKS = 6

# Fixed cost of a pair, in features, and cost of a multiply-add in a product with the mask relative to one on pairs.
# Measured on CPU for 4 to 256 features, 4 to 32 channels and 10 to 1,600 pairs per node.
_PAIR_OVERHEAD = 96
_FACTORED_COST = 4

# How many times as fast compiled code is with pairs of many features (`feature_pairs`), and how many times as many
# entries of blocks it computes in the same time (`linear_blocks`), if forming them costs little. Measured on CPU with 4
# heads, forward and backward, in sequences of 64 to 1,024 nodes: blocks were as fast as factors with 13 times as many
# entries as these have numbers.
_GAIN_OF_FEATURES = 4
_GAIN_OF_BLOCKS = 8


def choose_linear_path(mask: AttentionMask, num_features: int, head_channels: int, batch: Tensor | None = None) -> str:
    """Path with the least estimated cost for a mask, ``R`` features and ``D`` channels per head."""
    if mask.is_dense:
        return "dense"
    grouped = feature_pairs.refuses_features(num_features, mask.device) is None
    compiled = grouped or fused_pairs.serves_heads(num_features, head_channels, mask.device)
    if _prefers_compiled_blocks(mask, num_features, head_channels, batch) or _prefers_blocks(mask, batch, compiled):
        return "blocks"
    num_pairs, num_multiply_adds = mask.num_pairs, mask.num_multiply_adds
    if mask.has_blocks and num_pairs is None:
        gain = _GAIN_OF_BLOCKS if mask.shares_blocks and linear_blocks.refuses(mask.device) is None else 1
        most = min(gain * mask.num_nodes * num_features * (head_channels + 1), _MOST_BLOCK_ENTRIES)
        return "blocks" if _cost_of_blocks(mask.num_nodes if batch is None else batch) <= most else "factored"
    if num_pairs is None or num_pairs > PAIRS_PER_NUMBER * num_multiply_adds:
        return "factored"
    scoring = num_pairs * (num_features + head_channels + _PAIR_OVERHEAD)
    if grouped:
        scoring //= _GAIN_OF_FEATURES
    multiplying = _FACTORED_COST * num_multiply_adds * num_features * (head_channels + 1)
    return "pairwise" if scoring <= multiplying else "factored"


def choose_softmax_path(mask: AttentionMask, width: int, channels: int, batch: Tensor | None = None) -> str:
    """Path of attention whose kernel is not linear, for queries ``[N, H, width]`` and values ``[N, H, channels]``."""
    if _prefers_blocks(mask, batch, fused_pairs.serves_heads(width, channels, mask.device)):
        return "blocks"
    if mask.pairs_by_row is not None or mask.num_pairs is not None:  # num_pairs may list the pairs
        return "pairwise"
    if mask.has_blocks:
        return "blocks"
    return "dense"


def _prefers_compiled_blocks(mask: AttentionMask, num_features: int, head_channels: int, batch: Tensor | None) -> bool:
    """Whether blocks are made and used by compiled code, and are large, and few compared to the mask's numbers."""
    if not mask.compiles_blocks or linear_blocks.refuses(mask.device) is not None:
        return False
    nodes = mask.num_nodes if batch is None else batch
    entries, (num_sizes, _) = count_block_entries(nodes), group_sizes(nodes)
    if entries < num_sizes * _COMPILED_BLOCK_ENTRIES:
        return False
    stored, terms = mask.num_multiply_adds, mask.pairs_by_row
    if entries <= BLOCK_ENTRIES * stored:
        return True
    if terms is None or entries > min(_MOST_COMPILED_BLOCK_ENTRIES, _BLOCK_ENTRIES_PER_TERM * int(terms.sum())):
        return False
    factored = _FACTORED_COST_IN_BLOCKS * stored * num_features * (head_channels + 1)
    return entries * (num_features + head_channels + _BLOCK_OVERHEAD) <= factored


def _prefers_blocks(mask: AttentionMask, batch: Tensor | None, compiled: bool) -> bool:
    """Whether the dense blocks of the graphs are small, and few sizes, compared to the numbers that the mask stores.

    If ``compiled`` code serves pairs, and the mask keeps them, they are taken. Measured on CPU, 2 layers on new batches
    of 9 kinds: with softmax and additive scores, blocks took 1.2 to 6.6 times as long as pairs; with linear ones 0.9
    to 1.2 times as long if all graphs had one size, otherwise 1.5 to 3 times. If each layer lists the pairs again, as
    for a learned RWGNK mask, blocks took 0.6 to 0.8 times as long.
    """
    if not mask.has_blocks or (compiled and mask.keeps_pairs):
        return False
    nodes = mask.num_nodes if batch is None else batch
    entries = count_block_entries(nodes) if mask.pairs_by_row is None else _cost_of_blocks(nodes)
    return entries <= BLOCK_ENTRIES * mask.num_multiply_adds


def _cost_of_blocks(batch: Tensor | int) -> int:
    """Entries of the dense blocks of a batch vector, or of one graph of so many nodes, with a cost for each size."""
    return count_block_entries(batch) + _ENTRIES_PER_SIZE * group_sizes(batch)[0]
