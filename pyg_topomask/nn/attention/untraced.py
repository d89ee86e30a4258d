"""Attentions that ``torch.compile`` calls as they are, as one node of its graph.

Patterns, blocks and sizes depend on the values of a batch, which tracing does not know. Therefore, such an attention
becomes a custom operator: tracing sees only the shapes of its results, and at run time its ordinary ``forward`` is
called with the tensors of the batch. All that is computed once per batch is then shared by the layers as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from pyg_topomask.ops.csr import edge_tensors, is_sparse_tensor

_numbers = count()
_modules: WeakValueDictionary[int, Module] = WeakValueDictionary()

# Outputs and differentiable inputs of each recorded call, by the tensor that stands for the record in compiled code.
_records: WeakIdKeyDictionary = WeakIdKeyDictionary()


def number_of(module: Module) -> int:
    """A new number for ``module``, by which compiled code finds it."""
    number = next(_numbers)
    _modules[number] = module
    return number


def untraced(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``torch.compile`` call the method ``forward`` of an attention without tracing it.

    Its arguments must be ``x``, ``batch``, ``graph`` and perhaps ``carry``, and its results must have the shapes of
    ``x`` and ``carry``. A module with an attribute ``out_width`` instead returns ``[N, out_width]`` in the dtype of
    ``x``, also under autocast. It must neither write to its arguments nor set ``auxiliary_loss``. A call with other
    arguments is traced, as is one with a graph that stores a required attribute in another form than tensors and
    integers.
    """

    @wraps(forward)
    def call(
        self: Any, x: Tensor, batch: Tensor | None = None, graph: Data | None = None, *rest: Any, **more: Any
    ) -> Any:
        if not torch.compiler.is_compiling() or rest or more.keys() - {"carry"}:
            return forward(self, x, batch, graph, *rest, **more)
        stored = {} if graph is None else _stored(graph)
        if any(not isinstance(stored.get(name, 0), (Tensor, int)) for name in self.requires):
            return forward(self, x, batch, graph, **more)
        given = {"x": x, "batch": batch, **more}
        given = {name: value for name, value in given.items() if value is not None}
        attributes = {name: value for name, value in stored.items() if isinstance(value, Tensor)}
        sizes = {name: value for name, value in stored.items() if type(value) is int}
        tensors = [*given.values(), *attributes.values(), *self.parameters()]
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
        width = getattr(self, "out_width", None)
        out, carry, _ = _attend(
            torch.empty(0, device=x.device),
            tensors,
            [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors],
            [self._number, *sizes.values()],
            " ".join(given),
            None if graph is None else " ".join(attributes),
            " ".join(sizes),
            dtype,
            autocast,
            x.size(1) if width is None else width,
            dtype if width is None else x.dtype,
        )
        return (out, carry) if "carry" in given else out

    return call


def _stored(graph: Data) -> dict[str, Any]:
    """What a graph stores, with ``edge_index`` instead of a SparseTensor ``adj_t``, which is no tensor of torch."""
    stored = {name: graph[name] for name in graph.keys()}  # noqa: SIM118
    if "edge_index" not in stored and is_sparse_tensor(stored.get("adj_t")):
        stored["edge_index"], stored["edge_weight"] = edge_tensors(stored.pop("adj_t"))
    return stored


# PyTorch 2.6 cannot infer lists.
_SCHEMA = (
    "(Tensor call, Tensor[] tensors, bool[] needs, SymInt[] numbers, str arguments, str? attributes, str size_names, "
)
_SCHEMA += "ScalarType dtype, bool autocast, SymInt width, ScalarType out_dtype) -> (Tensor, Tensor, Tensor)"


# With activation checkpoints, a recomputed call must draw the same numbers for dropout. PyTorch 2.6 has no tags here.
_HAS_TAGS = "tags" in signature(torch.library.custom_op).parameters
_RANDOM: dict[str, Any] = {"tags": [torch.Tag.nondeterministic_seeded]} if _HAS_TAGS else {}


@torch.library.custom_op("topomask::attend", mutates_args=(), schema=_SCHEMA, **_RANDOM)
def _attend(
    call: Tensor,
    tensors: list[Tensor],
    needs: list[bool],
    numbers: list[int],
    arguments: str,
    attributes: str | None,
    size_names: str,
    dtype: torch.dtype,
    autocast: bool,
    width: int,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the module of that number.

    Args:
        call: An empty tensor, made anew for each call, so that equal calls with dropout are not merged.
        tensors: Arguments, attributes of the graph, and the module's parameters.
        needs: Whether each of them needs a gradient.
        numbers: The module's number, and the integer attributes of the graph.
        arguments, attributes, size_names: Names, separated by spaces. There is no graph if ``attributes`` is
            :obj:`None`.
        dtype: Dtype of autocast, or of ``x``.
        autocast: Whether autocast to ``dtype`` is on.
        width: Width of the result.
        out_dtype: Dtype of the results.

    Returns:
        The result, the new carry or an empty tensor, and the key of the record for the backward pass.
    """
    module, x, recorded = _modules[numbers[0]], tensors[0], any(needs)
    names, attribute_names = arguments.split(), (attributes or "").split()
    with (
        torch.inference_mode(False) if recorded else torch.no_grad(),  # compiled code has disabled autograd altogether
        torch.autocast(x.device.type, dtype if autocast else None, enabled=autocast),
    ):
        # Compiled code may reuse the memory of its intermediate results, so the record must not refer to it.
        own = zip(tensors[: len(names) + len(attribute_names)], needs)
        inputs = [x.detach().clone().requires_grad_() if need else x for x, need in own]
        others = _other_parameters(module, tensors[len(inputs) :], needs[len(inputs) :])
        inputs += [others.get(name, own) for name, own in module.named_parameters()]
        graph = None
        if attributes is not None:
            graph = Data.from_dict(dict(zip(attribute_names, inputs[len(names) :])))
            graph.update(dict(zip(size_names.split(), numbers[1:])))
        values = dict(zip(names, inputs))
        result = _forward(module, others, values.pop("x"), values.pop("batch", None), graph, **values)
    outputs = result if "carry" in values else (result,)
    key = torch.zeros(1, dtype=torch.int64)
    if recorded:
        _records[key] = outputs, [x for x, need in zip(inputs, needs) if need]
    out, carry = (_copy(part.to(out_dtype)) for part in (*outputs, x.new_empty(0))[:2])
    return out, carry, key


def _other_parameters(module: Module, given: list[Tensor], needs: list[bool]) -> dict[str, Tensor]:
    """Parameters that are not the module's own, as under ``torch.func.functional_call``, by name.

    Another tensor may have the memory of a parameter; it makes a difference only if the parameter is frozen.
    """
    both = zip(module.named_parameters(), given, needs)
    return {
        name: tensor.detach().clone().requires_grad_(need)
        for (name, own), tensor, need in both
        if tensor.data_ptr() != own.data_ptr() or (need and not own.requires_grad)
    }


class _Forward(Module):
    """A module whose hooks are not called, because compiled code has called them."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self.module.forward(*inputs, **more)


def _forward(module: Module, others: dict[str, Tensor], *inputs: Any, **more: Any) -> Any:
    """Call ``module.forward`` with some parameters replaced."""
    if not others:  # replacing takes 0.1 ms
        return module.forward(*inputs, **more)
    return functional_call(_Forward(module), {f"module.{name}": own for name, own in others.items()}, inputs, more)


@_attend.register_fake
def _(call: Tensor, tensors: list[Tensor], needs: Any, numbers: Any, arguments: str, *rest: Any) -> tuple[Tensor, ...]:
    x, carry, (width, dtype) = tensors[0], tensors[0].new_empty(0), rest[-2:]
    if "carry" in arguments:
        carry = tensors[arguments.split().index("carry")]
    shapes = (x.size(0), width), carry.shape
    return *(x.new_empty(shape, dtype=dtype) for shape in shapes), torch.empty(1, dtype=torch.int64)


_BACKWARD_SCHEMA = "(Tensor[] grads, Tensor key, Tensor[] inputs) -> Tensor[]"


@torch.library.custom_op("topomask::attend_backward", mutates_args=(), schema=_BACKWARD_SCHEMA)
def _attend_backward(grads: list[Tensor], key: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the recorded inputs, whose shapes are those of ``inputs``."""
    if key not in _records:
        raise RuntimeError("the gradient of a compiled attention can be computed only once")
    outputs, leaves = _records.pop(key)
    grads = [grad.to(out.dtype) for out, grad in zip(outputs, grads) if out.requires_grad]
    outputs = [out for out in outputs if out.requires_grad]
    with torch.inference_mode(False):
        found = torch.autograd.grad(outputs, leaves, grads, materialize_grads=True)
    return [_copy(grad) for grad in found]


@_attend_backward.register_fake
def _(grads: list[Tensor], key: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in inputs]


def _copy(x: Tensor) -> Tensor:
    """A copy that compiled code may write to."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.needs = inputs[1:3]
    ctx.save_for_backward(output[-1], *(x for x, need in zip(tensors, ctx.needs) if need))


def _backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    key, *inputs = ctx.saved_tensors
    found = iter(_attend_backward(list(grads[:2]), key, inputs))
    return None, [next(found) if need else None for need in ctx.needs], *(None,) * 9


_attend.register_autograd(_backward, setup_context=_setup_context)
