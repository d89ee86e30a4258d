"""Linear and softmax attention in the dense blocks of a mask, in compiled code: one call for all graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_topomask.ops.attention.block_means import BlockMeans, block_means
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.mask import row_errors
from pyg_topomask.ops.attention.problem import Problem


def refuses(problem: Problem, op: BlockMeans = block_means) -> str | None:
    """Why the engine cannot serve."""
    if problem.no_blocks is not None:
        return problem.no_blocks
    if problem.kernel not in (Kernel("linear"), Kernel("softmax")):
        return "it serves linear kernels of features without signs, and softmax without dropout"
    if 0 in problem.size:
        return "features and values without numbers are left to plain torch"
    return op.refuses(problem.q, problem.k, problem.v)


def attend(problem: Problem, op: BlockMeans = block_means) -> Tensor:
    """The outputs."""
    return with_size(problem, op)[0]


def with_size(problem: Problem, op: BlockMeans = block_means) -> tuple[Tensor, Tensor]:
    """The outputs, and :math:`S_i` ``[N, H]`` if the kernel is linear."""
    blocks, errors = [torch.broadcast_tensors(*pair) for pair in problem.blocks()], row_errors(problem.mask)
    entry, bound = zip(*blocks)
    masks = _joined(entry), None if problem.owns_bound else _joined(bound)
    errors = None if errors is None else errors.to(problem.v.dtype)
    table, is_softmax = problem.layout.table([block.size(0) == 1 for block in entry]), problem.kernel.name == "softmax"
    given = problem.q, problem.k, problem.v, *masks, errors, table, is_softmax, 1.0, 0
    return op(*given)[:2]


def _joined(blocks: Sequence[Tensor]) -> Tensor:  # [g or 1, H or 1, n, n] each -> [H or 1, S]
    flat = [block.transpose(0, 1).flatten(1) for block in blocks]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
