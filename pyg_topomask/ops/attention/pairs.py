"""Sums over the pairs in the support of a mask: over all pairs together, or over one part of the rows at a time.

Any two nodes whose walks visit the same hub form a pair, so the number of pairs grows with the square of a hub's
degree, even if the mask stores few numbers. Pairs are therefore counted before they are listed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.checks import warn_once
from pyg_topomask.ops.attention import feature_pairs, fused_pairs
from pyg_topomask.ops.attention.normalizer import Normalizer, row_tolerance
from pyg_topomask.ops.attention.pair_kernels import PairKernel, scaled
from pyg_topomask.ops.segment import split_by_count
from pyg_topomask.ops.sparse import MOST_ENTRIES, Pattern
from pyg_topomask.typing import PerformanceWarning

# Number of pairs that are listed together, and number of weights (pairs times heads) that are kept for the backward
# pass. Listing takes 50 to 200 bytes per pair, and a kept weight takes about 45 bytes: at most about 2 GiB together.
_PAIRS_AT_ONCE = 2**23
_WEIGHTS_KEPT = 2**24

# Pairs are listed together, and their weights kept, at least up to this many per number that the mask stores.
_PAIRS_PER_NUMBER = 4


def means_of_pairs(
    kernel: PairKernel,
    masks: Normalizer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: Tensor | None,
    origin: Tensor | None = None,
    key_scale: Tensor | None = None,
    pairs_per_number: int = 0,
) -> Tensor:
    """Attention on the support of a mask: of all heads in compiled code, or else head by head in plain torch.

    Up to 2^23 pairs are listed together, or more if the mask itself stores many numbers. Compiled code keeps no weights
    (pairs times heads) for the backward pass; plain torch keeps up to 2^24, and computes additional ones again in the
    backward pass, head by head. If there are more pairs, they are listed for one part of the rows at a time, and again
    in the backward pass, which is then not differentiable itself. Memory stays bounded, and time grows.

    Args:
        kernel: Kernel and normaliser.
        masks: The mask.
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, from which an origin may have been subtracted, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        origin: The origin that was subtracted, as in `weighted_mean`.
        key_scale: Scale of the keys, as in `fused_means`.
        pairs_per_number: Number of pairs that may be listed per number that the mask stores; at least 4. Twice as many
            weights may be kept.

    Returns:
        Shape ``[N, H, D]``.

    Raises:
        ValueError: If the mask has no sparse support.
    """
    (num_nodes, heads), dtype = v.shape[:2], v.dtype
    allowed = max(pairs_per_number, _PAIRS_PER_NUMBER) * masks.mask.num_multiply_adds
    at_once = min(max(_PAIRS_AT_ONCE, allowed), MOST_ENTRIES)
    by_row = masks.mask.pairs_by_row if num_nodes**2 > at_once else None
    num_pairs = 0 if by_row is None else int(by_row.sum())
    if by_row is None or num_pairs <= at_once:
        grouped = feature_pairs.refuses(kernel, q) is None and feature_pairs.repays(masks.mask.num_pairs, num_nodes)
        if not grouped and fused_pairs.refuses(q, v) is None and fused_pairs.divides(q):
            tolerance = row_tolerance(v, batch, masks.signed, masks.mask)
            found = masks.combined_pairs(v)
            out, total = fused_pairs.fused_means(kernel, *found, q, k, v, tolerance, key_scale)
            return out if origin is None else out + torch.where(found[0].restore(total)[..., None] == 0, 0, origin)
        pattern, entries, bounds = masks.pairs(dtype)
        again = pattern.nnz * heads > max(_WEIGHTS_KEPT, 2 * allowed)
        q, k = scaled(q, k, key_scale)
        return masks.mean(_sums(kernel, pattern, entries, bounds, q, k, v, again), v, batch, origin)
    sizes = split_by_count(by_row, _PAIRS_AT_ONCE // (4 * heads))
    warn_once(
        "pairs of hubs",
        f"the mask has up to {num_pairs:,} pairs of nodes, because any two nodes whose walks visit the same hub form a "
        f"pair. Attention lists them in {len(sizes)} parts, and again in the backward pass: memory stays bounded, and "
        "time grows",
        PerformanceWarning,
        stacklevel=4,
    )
    q, k = scaled(q, k, key_scale)
    patterns: dict[int, Pattern] = {}

    def part(start: int, stop: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pattern, entries, bounds = masks.pairs(dtype, (start, stop))
        # The backward graph holds the pattern of each part, which checkpointing does not free. Therefore, each pattern
        # is emptied when the next part is listed, and filled again in the backward pass.
        held = patterns.setdefault(start, pattern)
        listed = dict(vars(pattern))
        for other in patterns.values():
            vars(other).clear()
        vars(held).update(listed)
        return _sums(kernel, held, entries, bounds, q, k, v)

    parts, start = [], 0
    for size, rows in zip(sizes, q.split(sizes)):
        parts.append(checkpoint(part, start, start + size, rows, k, v, use_reentrant=False))
        start += size
    return masks.mean(torch.cat(parts), v, batch, origin)


def _sums(
    kernel: PairKernel,
    pattern: Pattern,
    entries: Tensor,
    bounds: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    again: bool = False,
) -> Tensor:
    if feature_pairs.refuses(kernel, q) is None:
        return feature_pairs.feature_sums(kernel, pattern, entries, bounds, q, k, v)
    if fused_pairs.refuses(q, v) is None:
        return fused_pairs.fused_sums(kernel, pattern, entries, bounds, q, k, v)
    return kernel.sums_of_heads(pattern, entries, bounds, q, k, v, again)
