"""Sums over the pairs in the support of a mask: over all at once, or over the pairs of some rows after the others.

Walks from everywhere meet in a hub, which makes a pair of every two nodes that they come from: pairs grow with the
square of a hub's degree, however few numbers the mask stores. So pairs are counted before they are listed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.attention.normalizer import Normalizer
from pyg_topomask.ops.segment import split_by_count
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.typing import PerformanceWarning

# Pairs that are listed at once, and weights, pairs times heads, that are kept for the backward pass. Listing takes 50
# to 200 bytes a pair, a kept weight about 45: together at most about 2 GiB.
_PAIRS_AT_ONCE = 2**23
_WEIGHTS_KEPT = 2**24

# Pairs and weights for each number that the mask stores, up to which they are listed and kept in any case.
_PAIRS_PER_NUMBER = 4

_warned: list[str] = []

HeadSums = Callable[[Pattern, Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


def sums_of_pairs(
    function: HeadSums,
    masks: Normalizer,
    receivers: Sequence[Tensor],
    senders: Sequence[Tensor],
    pairs_per_number: int = 0,
) -> Tensor:
    """Sums over the support of a mask, head by head.

    Up to 2^23 pairs are listed at once, and up to 2^24 weights (pairs times heads) kept for the backward pass; more if
    the mask itself stores so many numbers. Where there are more weights, they are computed again in the backward pass,
    one head after the other. Where there are more pairs, those of a part of the rows are listed at a time, and again in
    the backward pass, which then has no derivative of its own: memory stays bounded, and time grows.

    Args:
        function: Takes the pairs of one head, its entries and bounds ``[P]``, and its arrays of receivers and senders;
            gives its sums, as `weighted_mean` reads them, a row for each receiver.
        masks: The mask.
        receivers, senders: Arrays ``[N, H, *]`` that the sums are made of.
        pairs_per_number: Pairs that may be listed for each number that the mask stores; at least 4, and twice as many
            weights may be kept.

    Returns:
        Shape ``[N, H, D + 1]`` or ``[N, H, D + 2]``.

    Raises:
        ValueError: If the mask has no sparse support.
    """
    (num_nodes, heads), dtype = senders[0].shape[:2], senders[0].dtype
    allowed = max(pairs_per_number, _PAIRS_PER_NUMBER) * masks.mask.num_multiply_adds
    at_once = max(_PAIRS_AT_ONCE, allowed)
    by_row = masks.mask.pairs_by_row if num_nodes**2 > at_once else None
    num_pairs = 0 if by_row is None else int(by_row.sum())
    if by_row is None or num_pairs <= at_once:
        pattern, entries, bounds = masks.pairs(dtype)
        receivers, senders = ([pattern.arrange(x) for x in arrays] for arrays in (receivers, senders))
        again = pattern.nnz * heads > max(_WEIGHTS_KEPT, 2 * allowed)
        return pattern.restore(_head_sums(function, pattern, entries, bounds, receivers, senders, again))
    sizes = split_by_count(by_row, _PAIRS_AT_ONCE // (4 * heads))
    _warn_once(num_pairs, len(sizes))

    patterns: dict[int, Pattern] = {}

    def part(start: int, stop: int, receivers: Sequence[Tensor], senders: Sequence[Tensor]) -> Tensor:
        pattern, entries, bounds = masks.pairs(dtype, (start, stop))
        # Nodes of the backward graph hold the pattern that they were made with, which checkpointing does not free: it
        # is emptied when the next part is listed, and filled again in the backward pass.
        held = patterns.setdefault(start, pattern)
        listed = dict(vars(pattern))
        for other in patterns.values():
            vars(other).clear()
        vars(held).update(listed)
        return _head_sums(function, held, entries, bounds, receivers, senders)

    out, start = [], 0
    for size, *rows in zip(sizes, *(x.split(sizes) for x in receivers)):
        out.append(checkpoint(part, start, start + size, rows, senders, use_reentrant=False))
        start += size
    return torch.cat(out)


def _head_sums(
    function: HeadSums,
    pattern: Pattern,
    entries: Tensor,
    bounds: Tensor,
    receivers: Sequence[Tensor],
    senders: Sequence[Tensor],
    again: bool = False,
) -> Tensor:
    """Sums of all heads; with ``again`` they are computed again in the backward pass, and nothing is kept for it."""
    out = []
    # Unbound, not indexed, by head: the gradient of an index is as large as all heads.
    rows, columns = (zip(*(x.unbind(1) for x in arrays)) for arrays in (receivers, senders))
    for head, arrays in enumerate(zip(rows, columns)):
        entry = entries if entries.dim() == 1 else entries[:, head]
        bound = entry if bounds is entries else bounds if bounds.dim() == 1 else bounds[:, head]
        call = (pattern, entry, bound, *arrays)
        out.append(checkpoint(function, *call, use_reentrant=False) if again else function(*call))
    return torch.stack(out, dim=1)


def _warn_once(num_pairs: int, num_parts: int) -> None:
    if _warned:
        return
    text = (
        f"the mask joins up to {num_pairs:,} pairs of nodes, as a hub makes a pair of every two nodes whose walks "
        f"visit it. Attention takes them in {num_parts} parts and lists them again in the backward pass: memory stays "
        "bounded, and time grows"
    )
    warnings.warn(text, PerformanceWarning, stacklevel=5)
    _warned.append(text)
