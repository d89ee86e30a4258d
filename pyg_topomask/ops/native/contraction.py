"""Linear attention under a mask, slice by slice in compiled code: what such operations share (``slices.h``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.native.op import CompiledOp

# Parts of the values whose gradients are summed one after the other.
_MOST_PARTS = 4


class Contraction(CompiledOp):
    r"""Sums :math:`\sum_{jr} q_{ir} M_{ij} k_{jr} v_j`, ``[N, H, D]``, under a mask with learned coefficients.

    ``arrays`` begin with ``q``, ``k``, ``v`` and ``coeffs``; a subclass defines the product with the mask in plain
    torch. No array of :math:`N H R D` numbers is made, neither in the forward nor in the backward pass.
    """

    results, differentiable = ("sums",), 4
    work_per_thread = 2**20

    def product(self, x: Tensor, coeffs: Tensor, *rest: Any) -> Tensor:
        """The product of the mask with ``x [N, H, C]``."""
        raise NotImplementedError

    def size_of_coeffs(self, coeffs: Tensor) -> torch.Size:
        """Shape of the gradient of the coefficients of one head."""
        raise NotImplementedError

    def gradient_of_coeffs(self, sums: Tensor, coeffs: Tensor) -> Tensor:
        """The gradient in the shape of the coefficients, from that of each head, ``[H, *]``."""
        raise NotImplementedError

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[torch.Size]:
        return [v.shape]

    def twin(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        state = self.product((k[..., None] * v[..., None, :]).flatten(2), *rest)
        return (q[..., None] * state.unflatten(2, (k.size(2), v.size(2)))).sum(2)

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        return *inputs, self._parts(inputs[2])

    def backward(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], results: list[Tensor | None], grads: list[Tensor]
    ) -> list[Tensor | None]:
        q, k, v, coeffs = inputs[:4]
        parts, size = self._parts(v), self.size_of_coeffs(coeffs)
        shapes = (parts, *q.shape), (parts, *k.shape), v.shape, (q.size(1), parts, size.numel())
        dtypes = q.dtype, q.dtype, q.dtype, torch.float64
        room = [q.new_zeros(s, dtype=d) if needs else None for s, d, needs in zip(shapes, dtypes, needed)]
        self.run(inputs, results, grads, room)
        of_q, of_k = (None if x is None else x.sum(0) for x in room[:2])
        of_coeffs = room[3]
        if of_coeffs is not None:
            of_coeffs = self.gradient_of_coeffs(of_coeffs.sum(1).unflatten(1, size), coeffs).to(q.dtype).contiguous()
        return [of_q, of_k, room[2], of_coeffs]

    def _parts(self, v: Tensor) -> int:
        return max(min(_MOST_PARTS, v.size(2)), 1)
