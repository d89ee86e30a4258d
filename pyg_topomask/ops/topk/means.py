"""Softmax attention to keys that a search has found: on CUDA, one Triton kernel forward and two backward."""

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention.engines import pairs_triton
from pyg_topomask.ops.hashing import keep_factors
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.triton_support import power_of_two

_MODULE, _COMBINE = "pyg_topomask.ops.topk.triton_kernels", "pyg_topomask.ops.attention.triton_kernels"
_NUMBERS = 2**14  # most numbers of the kept keys and values of a query, which stay in registers
_PER_WARP = 2**11


class KeptMeans(CompiledOp):
    """Softmax attention ``[N, H, D]`` of ``q, k [N, H, R]`` and ``v [N, H, D]`` to the keys ``index [H, N, topk]``.

    Places of −1 have no key. Scores are scaled by :math:`1 / \\sqrt R`. The ``seed`` of the dropout is int64.
    ``longest`` is the largest number of queries that may keep a key.
    """

    library, name = "", "kept_means"
    arrays, results, differentiable = ("q", "k", "v", "index", "seed?"), ("out",), 3
    numbers = MappingProxyType({"dropout": float, "longest": int})

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[torch.Size]:
        return [v.shape]

    def refuses(self, q: Tensor, k: Tensor, v: Tensor, index: Tensor, *rest: Any) -> str | None:
        if loader.is_transformed():
            return "derivatives in forward mode and transforms of torch.func are left to plain torch"
        if (numbers := _numbers(_sizes(q, v, index))) > _NUMBERS:
            return f"the keys and values of a query have at most {_NUMBERS} numbers (got {numbers})"
        return triton_support.refuses(q.device)

    def twin(self, q: Tensor, k: Tensor, v: Tensor, index: Tensor, seed: Tensor | None, *rest: Any) -> Tensor:
        heads = torch.arange(q.size(1), device=q.device)[:, None]
        number = torch.arange(index.numel(), device=q.device).view(index.shape).transpose(0, 1)
        index = index.transpose(0, 1)
        exists, place = index >= 0, (index.clamp(min=0) * q.size(1) + heads).flatten()
        key, value = (x.flatten(0, 1).index_select(0, place).unflatten(0, index.shape) for x in (k, v))
        score = (q[:, :, None] * key).sum(-1) * q.size(-1) ** -0.5
        weight = score.masked_fill(~exists, -torch.inf).softmax(-1)
        if seed is not None:
            weight = weight * keep_factors(rest[0], seed, number).to(weight)
        return (weight[..., None] * value).sum(2)

    def run(self, inputs: Any, results: Any, grads: Sequence[Tensor] = (), room: Sequence[Tensor | None] = ()) -> None:
        """Launch the forward kernel, or those that fill the gradients that have ``room``."""
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in inputs[:3])
        index, seed, dropout, longest = inputs[3:]
        (rows, heads, width), channels, topk = q.shape, v.size(2), index.size(2)
        sizes, filled = _sizes(q, v, index), (*results, *(None,) * 5)
        if grads:
            of_q, of_k, of_v = (x.new_empty(x.shape) if space is None else space for x, space in zip((q, k, v), room))
            weights, column = v.new_empty(2, *index.shape), index.new_empty(index.numel(), dtype=torch.int32)
            filled = None, grads[0], of_q, *weights, column
        drop = {"DROPPED": 0 if seed is None else int(dropout * 2**32), "SCALE": 1 / (1 - dropout)}
        strides = [stride for x in (q, k, v) for stride in x.stride()[:2]]
        numbers = rows, heads, width, channels, topk
        warps = power_of_two(-(-_numbers(sizes) // _PER_WARP))
        launch = partial(triton_support.launch, _MODULE, num_warps=warps)
        arguments = q, k, v, index, seed, *filled, *strides, *numbers, width**-0.5
        launch("attend", (rows, heads), arguments, sizes | drop)
        if not grads or (room[1] is None and room[2] is None):
            return
        sizes["CUT"], columns = pairs_triton.CUT, rows * heads
        cuts = pairs_triton.places_of_cuts(column) if max(longest, topk) > sizes["CUT"] else 0
        *places, order = pairs_triton.transposed_pairs(column, columns)
        parts = [x.new_empty(2 * cuts, x.size(2)) for x in (of_k, of_v)]
        arguments = q, *grads, *weights, *places, order, of_k, parts[0], of_v, parts[1], *strides[:2], *numbers
        sizes["PAIRS"] = sizes.pop("TOPK")
        launch("backward_keys", (columns + cuts,), (*arguments, columns, cuts), sizes)
        for x, part in zip((of_k, of_v), parts):
            constants = {"CUT": sizes["CUT"], "HEADS": 1, "SIZE": power_of_two(x.size(2))}
            arguments = x, part, None, None, *places, cuts, 1, x.size(2)
            triton_support.launch(_COMBINE, "combine", (cuts, 1), arguments, constants, num_warps=1)


kept_means = KeptMeans()


def _sizes(q: Tensor, v: Tensor, index: Tensor) -> dict[str, int]:
    """Powers of two that are at least as large as the numbers of kept keys, and those of a key and a value."""
    sizes = index.size(2), q.size(2), v.size(2)
    return dict(zip(("TOPK", "WIDTH", "CHANNELS"), map(power_of_two, sizes), strict=True))


def _numbers(sizes: dict[str, int]) -> int:
    return sizes["TOPK"] * (sizes["WIDTH"] + sizes["CHANNELS"])
