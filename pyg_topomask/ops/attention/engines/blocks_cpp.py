"""Linear attention in the dense blocks of a mask, in compiled code, ``native/blocks/``.

It forms no array of one number per pair and head, neither in the forward pass nor in the backward pass, which computes
the scores again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.segment import in_groups


class BlockSums(CompiledOp):
    """Sums ``[g, n, H, D + 1]`` of linear attention (`Kernel`) in ``g`` graphs of ``n`` nodes.

    ``q, k [g, n, H, R]`` and ``v [g, n, H, D]`` are features without signs and values; ``entry`` and ``bound`` are
    blocks ``[g or 1, H or 1, n, n]`` (senders, receivers); the mask bounds itself if there is no bound.
    """

    library, name = "blocks", "block_sums"
    arrays, results, differentiable = ("q", "k", "v", "entry", "bound?"), ("sums",), 5
    with_gaps = ("q", "k", "v")
    work_per_thread = 2**22

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None) -> list[tuple[int, ...]]:
        return [(*v.shape[:3], v.size(3) + 1)]

    def work(self, q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None) -> int:
        return q.size(0) * q.size(1) ** 2 * q.size(2) * (q.size(3) + v.size(3))

    def twin(self, q: Tensor, k: Tensor, v: Tensor, entry: Tensor, bound: Tensor | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        sums, _ = Kernel("linear").sums_in_blocks(entry, entry if bound is None else bound, q, k, v)
        return sums.transpose(1, 2)

    def examples(self) -> Iterator[tuple[Tensor | None, ...]]:
        for g, n, heads, width, channels, own in (
            (2, 2, 2, 2, 1, (2, 2)),
            (0, 3, 1, 2, 1, (1, 1)),
            (3, 5, 1, 3, 2, (1, 1)),
            (2, 70, 3, 17, 9, (1, 3)),
        ):
            q, k = torch.rand(2, g, n, heads, width, dtype=torch.float64)
            v = torch.randn(g, n, heads, channels, dtype=torch.float64)
            entry = torch.randn(*own, n, n, dtype=torch.float64)
            yield q, k, v, entry, entry.abs() + 0.1
            yield q, k, v, entry.abs(), None


_block_sums = BlockSums()


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.no_blocks is not None:
        return problem.no_blocks
    if problem.kernel != Kernel("linear"):
        return "it serves linear kernels of features without signs"
    if 0 in problem.size:
        return "features and values without numbers are left to plain torch"
    return _block_sums.refuses(problem.q, problem.k, problem.v)


def work(problem: Problem) -> dict[str, float]:
    """The amounts of `Problem.block_work`."""
    return problem.block_work(kept_pairs=False)


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    groups = problem.layout.groups
    blocks = {graphs[0]: pair for graphs, pair in zip(groups.graphs, problem.blocks())}

    def sums(graphs: list[int], *qkv: Tensor) -> Tensor:  # [g, H, n, *] -> [g, H, n, D + 1]
        entry, bound = blocks[graphs[0]]
        arrays = (x.transpose(1, 2) for x in qkv)
        return _block_sums(*arrays, entry, None if bound is entry else bound.expand_as(entry)).transpose(1, 2)

    return problem.finish(in_groups(sums, groups, problem.q, problem.k, problem.v), problem.row_norm())
