"""Attention in the dense blocks of a mask on CUDA, by the Triton kernels of ``triton_blocks.py``.

One launch serves the forward pass of all graphs, whatever sizes they have, and two serve the backward pass. No number
of a pair and head is kept: the backward pass computes the scores again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention import block_means
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.numerics import least_denominator
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.ops.triton_support import power_of_two

_MODULE = "pyg_topomask.ops.attention.triton_blocks"
_TILE = 16  # nodes of a program, and of those that it reads at a time: the least that Triton multiplies
_NUMBERS, _CHANNELS = 160, 64  # most numbers of a key and a value, and of a value, of which four warps spill nothing
_WARPS = {32: 1, 80: 2, _NUMBERS: 4}  # for so many numbers


class BlockMeansTriton(block_means.BlockMeans):
    """`BlockMeans` on CUDA, under a mask and without a choice of keys; and the largest scores ``[N, H]`` of receivers.

    Only the kernels' backward pass reads these scores, so that the twin leaves them at −inf.
    """

    library, name = "", "block_means_triton"
    results = ("out", "size", "tops")  # type: ignore[assignment]
    constant_results = 1

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[torch.Size]:
        return [v.shape, v.shape[:2], v.shape[:2]]

    def constant(self, *inputs: Any) -> int:
        return super().constant(*inputs) + 1

    def twin(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        return *block_means.block_means(q, k, v, *rest), v.new_full(v.shape[:2], -torch.inf)

    def refuses(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
        if loader.is_transformed() or torch.compiler.is_compiling():
            return "derivatives in forward mode, torch.func and torch.compile are left to plain torch"
        if rest and (rest[0] is None or rest[-2:] != (1.0, 0)):
            return "it serves all keys under a mask, and scores without a factor"
        width, channels = power_of_two(q.size(2)), power_of_two(v.size(2))
        if width + channels > _NUMBERS or channels > _CHANNELS:
            return f"values of more than {_CHANNELS} numbers, or {_NUMBERS} with keys, are left to plain torch"
        return triton_support.refuses(q.device)

    def run(self, inputs: Any, results: Any, grads: Sequence[Tensor] = (), room: Sequence[Tensor | None] = ()) -> None:
        """Launch the forward kernel, or those that fill the gradients that have ``room``."""
        *_, errors, table, softmax, _, _ = inputs
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in inputs[:3])
        entry, bound = inputs[3].contiguous(), None if inputs[4] is None else inputs[4].contiguous()
        (heads, width), channels, (own, entries) = q.shape[1:], v.size(2), entry.shape
        sizes = {"WIDTH": max(_TILE, power_of_two(width)), "CHANNELS": max(_TILE, power_of_two(channels))}
        warps = next(count for most, count in _WARPS.items() if sum(sizes.values()) <= most)
        sizes |= {"SOFTMAX": softmax, "TILE": _TILE}
        strides = *(stride for x in (q, k, v) for stride in x.stride()[:2]), entries if own > 1 else 0
        arrays, numbers, tiles = (q, k, v, entry, bound), (heads, width, channels), _tiles(table, q.device)
        launch = partial(triton_support.launch, _MODULE, grid=(len(tiles), heads), num_warps=warps)
        if not grads:
            of_errors = (0, 0) if errors is None else errors.expand(-1, heads).stride()
            arguments = *arrays, errors, tiles, *results, *strides, *of_errors, *numbers
            launch("forward", arguments=arguments, constants=sizes | {"LEAST": least_denominator(v.dtype)})
            return
        of_q, of_k, of_v = (x.new_empty(x.shape) if space is None else space for x, space in zip((q, k, v), room))
        apart, used = (int(table[:, column].square().sum()) for column in (3, 1))  # entries if no graphs share them
        shared = own < heads or apart > entries
        filled = [x.new_empty(heads, apart) if shared and x is not None else x for x in room[3:5]]
        for x in filled:
            if x is not None and used < apart:
                x.zero_()
        out, size, tops = results
        saved, of_size = (tiles, out, size, tops, *grads), torch.empty_like(size)
        arguments = *arrays, *saved, of_size, of_q, *filled, *strides, apart, *numbers
        launch("backward_receivers", arguments=arguments, constants=sizes)
        arguments = *arrays, tiles, size, tops, grads[0], of_size, of_k, of_v, *strides, *numbers
        if (width | channels) % 16:  # vectors that are not aligned take more registers
            warps = max(warps, 2)
        launch("backward_senders", arguments=arguments, constants=sizes, num_warps=warps)
        for x, grad in zip(room[3:5], filled):
            if x is not None and grad is not None and shared:
                x.copy_(_added(grad, table, own))


_block_means = BlockMeansTriton()
attend, with_size = partial(block_means.attend, _block_means), partial(block_means.with_size, _block_means)


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if not problem.v.is_cuda:  # Triton's interpreter would serve CPU tensors, a thousand times as slowly
        return f"it runs on CUDA (got {problem.v.device})"
    return block_means.refuses(_block_means, problem)


def _added(grad: Tensor, table: Tensor, own: int) -> Tensor:
    """Gradients ``[own, S]`` of entries that heads or graphs share, from those of each head and graph."""
    grad = grad.sum(0, keepdim=True) if own == 1 else grad
    first, counts = table[:, 2].unique_consecutive(return_counts=True)
    if len(first) == len(table):
        return grad
    widths = table[counts.cumsum(0) - 1, 3].tolist()
    users = list(zip(counts.tolist(), widths))
    parts = grad.split([count * n * n for count, n in users], dim=1)
    added = [
        part.view(own, count, -1).sum(1) if count > 1 else part for part, (count, _) in zip(parts, users, strict=True)
    ]
    return torch.cat(added, dim=1)


@once_per_batch
def _tiles(table: Tensor, device: torch.device) -> Tensor:
    """Table of the programs of a head; see ``triton_blocks.py``."""
    squares = table[:, 3].square()
    graph, first = ragged_ranges(torch.zeros_like(squares), -(-table[:, 1] // _TILE))
    rows = torch.stack([*table.T, squares, squares.cumsum(0) - squares], dim=1)[graph]
    rows[:, 4] = _TILE * first
    return rows.to(device, non_blocking=True)
