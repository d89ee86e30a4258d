"""Linear attention under masks whose products are computed for some columns at a time, without all of them at once."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.native.op import CompiledOp

# Parts of the values whose gradients are summed one after the other.
_MOST_PARTS = 4


class SlicedAttention(CompiledOp):
    r"""Sums :math:`\sum_{jr} q_{ir} M_{ij} k_{jr} v_j`, slice by slice (``slices.h``).

    The first arrays are ``q``, ``k [N, H, R]``, ``v [N, H, D]`` and the coefficients of the mask. No array of
    :math:`N H R D` numbers is made, neither in the forward nor in the backward pass.
    """

    results, differentiable = ("sums",), 4
    reads_numbers = MappingProxyType({"parts": int})

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[torch.Size]:
        return [v.shape]

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        return *inputs, self._parts(inputs[2])

    def size(self, coeffs: Tensor) -> int:
        """Number of the coefficients of a head."""
        raise NotImplementedError

    def of_coeffs(self, by_head: Tensor, coeffs: Tensor) -> Tensor:
        """The gradient of the coefficients, from that of each head, ``[H, size]`` in float64."""
        raise NotImplementedError

    def backward(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], results: list[Tensor | None], grads: list[Tensor]
    ) -> list[Tensor | None]:
        q, k, v, coeffs = inputs[:4]
        parts = self._parts(v)
        shapes = (parts, *q.shape), (parts, *k.shape), v.shape, (q.size(1), parts, self.size(coeffs))
        dtypes = q.dtype, q.dtype, q.dtype, torch.float64
        room = [q.new_zeros(s, dtype=d) if needs else None for s, d, needs in zip(shapes, dtypes, needed)]
        self.run(inputs, results, grads, room)
        of_q, of_k = (None if x is None else x.sum(0) for x in room[:2])
        of_coeffs = None if room[3] is None else self.of_coeffs(room[3].sum(1), coeffs).to(q.dtype).contiguous()
        return [of_q, of_k, room[2], of_coeffs]

    def _parts(self, v: Tensor) -> int:
        return max(min(_MOST_PARTS, v.size(2)), 1)


def with_all_columns(multiply: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same sums from the product of the mask with all columns ``k_r v``, ``[N, H, R D]``."""
    state = multiply((k[..., None] * v[..., None, :]).flatten(2))
    return (q[..., None] * state.unflatten(2, (k.size(2), v.size(2)))).sum(2)
