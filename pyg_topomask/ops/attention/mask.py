"""What attention asks of a mask: its size, its pairs, its dense blocks and its dense form.

A mask is anything with ``@``. Where it has them, these make it faster: ``heads``; ``work``, the multiply-adds of one
column of ``mask @ x``; ``num_pairs`` and ``pairs()``, its support and entries; ``has_blocks`` and ``blocks(layout)``,
each graph's dense block; ``to_dense()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.blocks import block_layout, count_block_entries
from pyg_topomask.ops.numerics import divide_sums
from pyg_topomask.ops.segment import in_groups
from pyg_topomask.ops.sparse import Pattern

# Entries of dense blocks for each number that a mask stores, up to which blocks are taken. A pair in a block costs a
# fifth to a tenth of one in a sparse pattern, and no pattern need be found; the limit keeps memory within a constant
# of the stored numbers.
_BLOCK_ENTRIES = 4

# Pairs for each number that a mask stores, up to which they are listed. A hub that every walk visits makes the support
# dense: the limit keeps memory, about 100 bytes a pair, within a constant of the stored numbers.
MOST_PAIRS = 64


def check_mask(mask: Any, q: Tensor, path: str = "auto") -> None:
    """Refuse a mask of other nodes or heads than ``q`` ``[N, H, R]``, or not for ``path``. Raises ValueError."""
    num_nodes = mask.size(-1) if isinstance(mask, Tensor) else getattr(mask, "num_nodes", q.size(0))
    if num_nodes != q.size(0):
        raise ValueError(f"the mask is for {num_nodes} nodes, but 'q' has {q.size(0)} rows; is it of another batch?")
    heads = heads_of(mask)
    if heads is not None and heads != q.size(1):
        raise ValueError(f"the mask has {heads} heads, but 'q' has {q.size(1)}")
    if path == "factored" and isinstance(mask, Tensor) and mask.dim() == 3:
        raise ValueError("a tensor of one mask per head is not multiplied on path 'factored': wrap it in DenseOperator")


def heads_of(mask: Any) -> int | None:
    """``H`` of a mask with entries of its own for each head."""
    if isinstance(mask, Tensor):
        return mask.size(0) if mask.dim() == 3 else None
    return getattr(mask, "heads", None)


def is_dense(mask: Any) -> bool:
    """Whether the whole array is there already."""
    return isinstance(mask, Tensor) or getattr(mask, "is_dense", False)


def dense_entries(mask: Any, dtype: torch.dtype) -> Tensor:
    """The mask as ``[N, N]`` or ``[H, N, N]``."""
    return (mask if isinstance(mask, Tensor) else mask.to_dense()).to(dtype)


def supported_pairs(mask: Any, dtype: torch.dtype) -> tuple[Pattern, Tensor]:
    """Support and entries, ``[P]`` or ``[P, H]``, of a mask. Raises ValueError if it has no sparse support."""
    if getattr(mask, "num_pairs", None) is None:
        raise ValueError(f"path 'pairwise' needs a mask with a sparse support, which {type(mask).__name__} has not")
    pattern, entries = mask.pairs()
    return pattern, entries.to(dtype)


def row_errors(mask: Any) -> Tensor | None:
    """Absolute errors of a mask's entries by row, shape ``[N, H or 1]``; :obj:`None` where its products are exact."""
    error = mask.error
    if isinstance(error, Tensor):
        return error.reshape(-1, 1).expand(mask.num_nodes, 1) if error.dim() < 2 else error
    return torch.full((mask.num_nodes, 1), error, device=mask.device) if error else None


def prefers_blocks(mask: Any, num_nodes: int, batch: Tensor | None) -> bool:
    """Whether dense blocks of the graphs are small beside what the mask stores."""
    if not getattr(mask, "has_blocks", False):
        return False
    return count_block_entries(num_nodes if batch is None else batch) <= _BLOCK_ENTRIES * mask.num_multiply_adds


def attend_in_blocks(
    function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    mask: Any,
    batch: Tensor | None,
    q: Tensor,
    k: Tensor,
    values: Tensor,
) -> Tensor:
    """Attention within each graph under its dense block of the mask, graphs of equal size in one call.

    Args:
        function: Takes the entries of ``g`` graphs of ``n`` nodes, ``[g, H or 1, n, n]``, senders ahead of receivers,
            and their ``q, k [g, H, n, R]`` and ``values [g, H, n, D + 1]``; gives the sums ``[g, H, n, D + 2]`` that
            `divide_sums` takes.
        mask: The mask.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        q, k: Shape ``[N, H, R]``.
        values: Values with a last column of ones, shape ``[N, H, D + 1]``.

    Returns:
        Shape ``[N, H, D]``.

    Raises:
        ValueError: If the mask is not known by its blocks, or joins two graphs.
    """
    if not getattr(mask, "has_blocks", False):
        raise ValueError(f"path 'blocks' needs a mask known by its graphs' blocks, which {type(mask).__name__} is not")
    layout = block_layout(torch.zeros(q.size(0), dtype=torch.int64, device=q.device) if batch is None else batch)
    if not layout.groups.graphs:
        return values[..., :-1].clone()
    blocks = {graphs[0]: block.to(q.dtype) for graphs, block in zip(layout.groups.graphs, mask.blocks(layout))}

    def attend(graphs: list[int], q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        entry = blocks[graphs[0]]
        return function(entry[:, None] if entry.dim() == 3 else entry, q, k, values)

    return divide_sums(in_groups(attend, layout.groups, q, k, values))
