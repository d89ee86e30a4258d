"""Attention within the graphs of a batch in compiled code, ``native/blocks/``: one call, whatever sizes they have.

It forms no array of one number per pair and head, neither in the forward pass nor in the backward pass, which computes
the scores again.
"""

from collections.abc import Iterator, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.mask import row_errors
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.native.op import CompiledOp


class BlockMeans(CompiledOp):
    """Means ``[N, H, D]`` of linear or softmax attention (`Problem.finish`), and the sizes :math:`S_i` ``[N, H]``, 0 in
    rows that vanish, with a gradient for the linear kernel.

    ``q, k [N, H, R]`` are features without signs for the linear kernel, and ``v [N, H, D]`` are values. ``entry`` and
    ``bound [H or 1, S]`` are blocks (senders, receivers), at the places and for the nodes that the ``table`` of
    `BlockLayout.table` says. Without them, all entries are one; the mask bounds itself if there is no bound.
    ``errors [N, H or 1]`` are those of entries by row. Scores ``k_j . q_i`` are multiplied by ``scale``. If ``topk`` is
    not 0, softmax attention reads the ``topk`` senders with the largest scores, the lower ones among equals, and graphs
    have at most `MOST_SELECTED` nodes.
    """

    library, name = "blocks", "block_means"
    arrays = ("q", "k", "v", "entry?", "bound?", "errors?", "table")
    numbers = MappingProxyType({"softmax": bool, "scale": float, "topk": int})
    results, differentiable, keeps_results = ("out", "size"), 5, True
    with_gaps = ("q", "k", "v")
    work_per_thread = 2**22

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[torch.Size]:
        return [v.shape, v.shape[:2]]

    def constant(self, *inputs: Any) -> int:
        return int(inputs[-3])

    def work(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
        return int(rest[3][:, 1].square().sum()) * q.size(1) * (q.size(2) + v.size(2))

    def twin(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        *masks, errors, table, softmax, scale, topk = rest
        kernel, graphs = Kernel("softmax" if softmax else "linear"), sorted(table.tolist())
        batch = torch.repeat_interleave(torch.tensor([n for _, n, _, _ in graphs], device=q.device, dtype=torch.int64))
        problem = Problem(kernel, q, k, v, None if errors is None else SimpleNamespace(error=errors), batch)
        found = [torch.cat([v[:0], (q[:0] * k[:0]).sum(-1, keepdim=True)], dim=-1)]  # with gradients
        norms = [found[0][..., :1].detach()]
        for first, n, start, width in graphs:
            blocks = [
                None if x is None else x[:, start : start + width**2].view(1, -1, width, width)[..., :n, :n]
                for x in masks
            ]
            entry = v.new_ones(1, 1, n, n) if blocks[0] is None else blocks[0]
            bound = entry if blocks[1] is None else blocks[1]
            of_q, of_k, of_v = (x[first : first + n].transpose(0, 1)[None] for x in (q, k, v))
            if topk:
                order = (of_k @ of_q.mT).argsort(dim=-2, descending=True, stable=True)
                best = entry.new_zeros(order.shape).scatter(-2, order[..., :topk, :], 1.0)
                entry, bound = entry * best, bound * best
            sums, size = kernel.sums_in_blocks(entry, bound, of_q * scale, of_k, of_v)
            found.append(sums[0].transpose(0, 1))
            if errors is not None:
                norms.append(problem.row_norm(size, bound)[0].transpose(0, 1))  # type: ignore[index]  # there are errors
        sums, norm = torch.cat(found), None if errors is None else torch.cat(norms)
        size, total = sums[..., -1:], sums[..., -1:].detach()
        size = (total if softmax else size).masked_fill(problem.vanished(total, total, norm), 0)
        return problem.finish(sums, norm), size[..., 0]

    def examples(self) -> Iterator[tuple[Any, ...]]:
        # First node, nodes, first entry, width; heads, features, channels, heads of the mask; signs, errors, best keys.
        apart, shared = [[2, 1, 0, 2], [0, 2, 4, 2]], [[n, 5, 0, 5] for n in (0, 5, 10)]
        large, full = [[67, 3, 0, 4], [0, 67, 16, 70]], [[64, 29, 0, 29], [0, 64, 841, 64]]
        for softmax in (False, True):
            for rows, sizes, own, signs, error, topk in (
                (apart, (2, 2, 1), 2, True, None, 1),
                ([], (1, 2, 2), 0, False, None, 0),
                (shared, (2, 1, 1), 1, False, 1e-9, 0),
                (large, (3, 17, 9), 3, True, None, 0),
                (large, (3, 17, 9), 0, False, None, 0),
                (full, (3, 17, 9), 0, False, None, 7),
            ):
                heads, width, channels = sizes
                nodes = sum(n for _, n, _, _ in rows)
                q, k = torch.rand(2, nodes, heads, width, dtype=torch.float64)
                q, k = (q, k) if topk < 2 else ((3 * q).round(), (3 * k).round())  # many scores are equal
                v = torch.randn(nodes, heads, channels, dtype=torch.float64)
                count = max((start + size**2 for _, _, start, size in rows), default=0)
                entry = torch.randn(own, count, dtype=torch.float64)
                masks = (entry, entry.abs() + 0.1) if signs else (entry.abs(), None) if own else (None, None)
                errors = None if error is None else torch.full((nodes, 1), error, dtype=torch.float64)
                table = torch.tensor(rows, dtype=torch.int64).view(-1, 4)
                yield q, k, v, *masks, errors, table, softmax, 0.7, topk if softmax else 0


MOST_SELECTED = 64
"""Nodes of a tile, `TILE` in blocks.cpp."""
block_means = BlockMeans()


def softmax_in_graphs(
    q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout, scale: float, topk: int = 0
) -> Tensor | None:
    """Softmax attention of the nodes of each graph to all of them, or to ``topk``; :obj:`None` if plain torch serves.

    Args:
        q, k: Queries and keys ``[N, H, R]``.
        v: Values ``[N, H, D]``.
        layout: The graphs.
        scale: Factor of the scores.
        topk: As in `BlockMeans`.

    Returns:
        Shape ``[N, H, D]``.
    """
    table = layout.table()
    if 0 in q.shape or 0 in v.shape or block_means.refuses(q, k, v, None, None, None, table) is not None:
        return None
    means: Tensor = block_means(q, k, v, None, None, None, table, True, scale, topk)[0]
    return means


def refuses(op: BlockMeans, problem: Problem) -> str | None:
    """Why an operation cannot serve."""
    if problem.no_blocks is not None:
        return problem.no_blocks
    if problem.signed or problem.dropout or problem.kernel not in (Kernel("linear"), Kernel("softmax")):
        return "it serves linear kernels of features without signs, and softmax without dropout"
    if 0 in problem.size:
        return "features and values without numbers are left to plain torch"
    return op.refuses(problem.q, problem.k, problem.v)


def attend(op: BlockMeans, problem: Problem) -> Tensor:
    """The outputs under the blocks of a mask, by an operation."""
    return with_size(op, problem)[0]


def with_size(op: BlockMeans, problem: Problem) -> tuple[Tensor, Tensor]:
    """The same, and :math:`S_i` ``[N, H]`` if the kernel is linear."""
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
