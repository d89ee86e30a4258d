"""Autograd functions that transforms of `torch.func` and forward mode can use."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask import plan as plans
from pyg_topomask.ops.native.loader import is_transformed


class Mapped(torch.autograd.Function):
    """A function with one result that `torch.vmap` maps by one call for each entry of the batch; call `of`."""

    @classmethod
    def of(cls, *inputs: Any) -> Any:
        """The result. ``torch.compile`` and ``torch.export`` see ``forward``, whose derivatives torch knows."""
        return cls.forward(*inputs) if torch.compiler.is_compiling() else cls.apply(*inputs)

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        if is_transformed():
            return super().apply(*inputs)
        # Torch would first look for arguments with defaults, which takes longer than all else in a small call.
        return super(torch.autograd.Function, cls).apply(*inputs)  # type: ignore[misc]

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        calls = (
            [x.select(dim, i) if isinstance(dim, int) else x for x, dim in zip(inputs, in_dims)]
            for i in range(info.batch_size)
        )
        return torch.stack([cls.apply(*call) for call in calls]), 0


class Linear(Mapped):
    """A linear function of one tensor, and of further arguments.

    A subclass defines ``forward(x, *rest)``, and ``adjoint(*rest)``, the arguments with which it is its own transpose.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rest = inputs[1:]

    @staticmethod
    def adjoint(*rest: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return cls.apply(grad, *cls.adjoint(*ctx.rest)), *(None,) * len(ctx.rest)

    @classmethod
    def jvp(cls, ctx: Any, of_x: Tensor, *_: None) -> Any:
        return cls.apply(of_x, *ctx.rest)


class Bilinear(Mapped):
    """A function of two tensors that is linear in each of them, and of further arguments.

    A subclass defines ``forward(left, right, *rest)`` and ``gradients(grad, left, right, needed, *rest)``: two
    gradients in operations that can be differentiated again, :obj:`None` where ``needed`` is false.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.rest = inputs[2:]

    @staticmethod
    def gradients(grad: Tensor, left: Tensor, right: Tensor, needed: tuple[bool, bool], *rest: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_autocast_enabled(grad.device.type):  # a backward pass may run inside of a region of autocast
            with torch.autocast(grad.device.type, enabled=False):
                return cls.backward(ctx, grad)
        left, right = ctx.saved_tensors
        return *cls.gradients(grad, left, right, ctx.needs_input_grad[:2], *ctx.rest), *(None,) * len(ctx.rest)

    @classmethod
    def jvp(cls, ctx: Any, of_left: Tensor | None, of_right: Tensor | None, *_: Any) -> Any:
        left, right = ctx.saved_tensors
        parts = [] if of_left is None else [cls.apply(of_left, right, *ctx.rest)]
        parts += [] if of_right is None else [cls.apply(left, of_right, *ctx.rest)]
        return sum(parts[1:], parts[0])


def recomputed(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """The result of a function, which the backward pass computes again instead of keeping what it needs.

    Everything is kept in a run with a plan, which the backward pass is not a part of, and within transforms of
    `torch.func`, which have no rules for checkpoints.
    """
    if is_transformed() or plans.reading():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
