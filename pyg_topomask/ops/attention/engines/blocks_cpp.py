"""Linear and softmax attention in the dense blocks of a mask, in compiled code: one call for all graphs."""

from functools import partial

from pyg_topomask.ops.attention import block_means

refuses = partial(block_means.refuses, block_means.block_means)
attend, with_size = (
    partial(block_means.attend, block_means.block_means),
    partial(block_means.with_size, block_means.block_means),
)
