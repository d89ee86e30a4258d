"""Compiled functions as operators of ``torch.library``, for calls that torch itself records or maps.

``torch.compile`` keeps ``torch.ops.topomask.<name>`` in its graph. Autograd maps ``<name>_backward`` over several
gradients at once: ``jacobian(vectorize=True)``, PyG's ``total_influence``. Other calls do not come here, because the
dispatch of torch would take twice as long as the rest of a small call.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyg_topomask.ops.native.op import CompiledOp

Function = TypeVar("Function", bound=Callable[..., Tensor])

_LIBRARY = torch.library.Library("topomask", "FRAGMENT")
_TYPES = {int: "int", float: "float", bool: "bool"}


class Operators:
    """The two operators of a `CompiledOp`.

    Args:
        op: The operation. Its compiled function must serve the tensors.
    """

    def __init__(self, op: "CompiledOp") -> None:
        self.op, self._counts = op, (len(op.arrays), len(op.results), len(op.moving))
        self.forward = _define(op.name, op.arrays, op.numbers, len(op.results), op.compute, self._empty)
        optional = [f"{name}?" for name in op.results]
        given = [*op.arrays, *optional, *(f"grad_{name}" for name in op.moving)]
        self._backward = _define(
            f"{op.name}_backward",
            given,
            {"needed": list, **op.numbers},
            op.differentiable,
            self._compute_gradients,
            self._empty_gradients,
        )
        torch.library.register_autograd(
            f"topomask::{op.name}",
            lambda ctx, *grads: op.gradients(ctx, ctx.needs_input_grad, grads),
            setup_context=op.keep,
            lib=_LIBRARY,
        )

    def backward(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], results: Sequence[Tensor | None], grads: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """`CompiledOp.backward` as one operator."""
        count = self._counts[0]
        found = self._backward(*inputs[:count], *results, *grads, list(needed), *inputs[count:])
        return [x if needs else None for x, needs in zip(_listed(found), needed)]

    def _empty(self, *inputs: Any) -> Any:
        return _joined(inputs[0], [inputs[0].new_empty(shape) for shape in self.op.shapes(*inputs)])

    def _compute_gradients(self, *given: Any) -> Any:
        arrays, results, moving = self._counts
        first, second, third = arrays, arrays + results, arrays + results + moving
        inputs, needed = (*given[:first], *given[third + 1 :]), given[third]
        found = self.op.backward(needed, inputs, list(given[first:second]), list(given[second:third]))
        return _joined(inputs[0], found)

    def _empty_gradients(self, *given: Any) -> Any:
        needed, first = given[sum(self._counts)], given[: self.op.differentiable]
        return _joined(given[0], [x.new_empty(x.shape) if needs else None for x, needs in zip(first, needed)])


def _joined(like: Tensor, found: Sequence[Tensor | None]) -> Any:
    """The results of an operator: an empty tensor stands for one that is absent."""
    made = [like.new_empty(0) if x is None else x for x in found]
    return made[0] if len(made) == 1 else tuple(made)


def _listed(found: Any) -> Sequence[Tensor]:
    return [found] if isinstance(found, Tensor) else found


def _define(
    name: str,
    arrays: Sequence[str],
    numbers: Mapping[str, type],
    num_results: int,
    compute: Callable[..., Any],
    empty: Callable[..., Any],
) -> Callable[..., Any]:
    """Define ``torch.ops.topomask.<name>``: ``compute`` gives results, and ``empty`` shapes to tracers."""
    given = [f"Tensor{'?' * array.endswith('?')} {array.removesuffix('?')}" for array in arrays]
    given += [f"{'bool[]' if kind is list else _TYPES[kind]} {number}" for number, kind in numbers.items()]
    made = "Tensor" if num_results == 1 else f"({', '.join(['Tensor'] * num_results)})"
    _LIBRARY.define(f"{name}({', '.join(given)}) -> {made}")
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"topomask::{name}", empty, lib=_LIBRARY)
    operator: Callable[..., Any] = getattr(torch.ops.topomask, name)
    return operator


def for_each(function: Function) -> Function:
    """Let autograd call ``function`` for each of several gradients over which it maps a backward pass.

    Torch has rules only for some of its own operations there, and a loop for every operator.

    Args:
        function: Function of tensors and numbers. Its result is a new tensor.
    """
    operator = torch.library.custom_op(f"topomask::each{function.__name__}", function, mutates_args=())

    @wraps(function)
    def call(*inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        return (operator if is_mapped(*tensors) else function)(*inputs)

    return cast(Function, call)


def is_mapped(*tensors: Tensor | None) -> bool:
    """Whether autograd maps a backward pass over several gradients, all of which these tensors hold."""
    if torch.compiler.is_compiling():
        return False
    # A private name: in public, only a missing data_ptr() tells it, which tensors within torch.func lack as well.
    return any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors)
