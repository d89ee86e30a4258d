"""Compiled functions as operations of torch: what every one of them needs, written once.

`Entry` calls a function of ``native/<library>/`` with arrays and numbers; ``array.h`` reads and checks them.
`CompiledOp` makes a differentiable operation from such a function and its twin in plain torch.
"""

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pyg_topomask import plan as plans
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.operators import Operators, is_mapped

DTYPES = {torch.float32: 1, torch.float64: 2, torch.int64: 3, torch.int32: 4}
"""Codes of the dtypes that compiled functions read; those of ``code_of`` in ``array.h``."""

_ABSENT = (0,) * 11
_PAD = [(0,) * (4 - dim) for dim in range(5)]
_MISFIT = -1000  # code of array 0; see ``checked`` in ``array.h``


class Entry:
    """A function of a compiled library.

    Args:
        library: Name of the library.
        name: Name of the function.
        arrays: Names of its arrays, in their order in the source.
        numbers: Names and types of its numbers, in their order in the source.
    """

    def __init__(
        self, library: str, name: str, arrays: Sequence[str], numbers: Mapping[str, type] | None = None
    ) -> None:
        self.library, self.name, self.arrays, self.numbers = library, name, tuple(arrays), numbers or {}
        codes = "".join("d" if kind is float else "q" for kind in self.numbers.values())
        self._block = struct.Struct(f"{3 + 11 * len(self.arrays)}q{codes}")

    def __call__(
        self, arrays: Sequence[Tensor | None], *numbers: float, threads: int = 1, answers: Sequence[int] = ()
    ) -> int:
        """Call the function.

        Args:
            arrays: All arrays, on CPU; :obj:`None` for one that is absent.
            numbers: All numbers.
            threads: Number of threads.
            answers: Negative results that are answers of the function; others are errors.

        Returns:
            What the function returns.

        Raises:
            MemoryError: If memory is short.
            RuntimeError: If the function does not accept an array, or fails.
        """
        block = [threads, len(arrays), len(numbers)]
        for number, x in enumerate(arrays):
            if x is None:
                block += _ABSENT
            else:
                shape = x.shape
                if len(shape) >= len(_PAD):
                    raise RuntimeError(f"array {self.arrays[number]!r} does not fit in {self._what(arrays)}")
                pad = _PAD[len(shape)]
                block += (x.data_ptr(), DTYPES[x.dtype], len(shape), *shape, *pad, *x.stride(), *pad)
        function = getattr(loader.load(self.library), self.name)
        function.restype = ctypes.c_int64
        code: int = function(self._block.pack(*block, *numbers))
        if code >= 0 or code in answers:
            return code
        if code == -1:
            raise MemoryError(f"not enough memory for {self._what(arrays)}")
        if _MISFIT >= code > _MISFIT - len(arrays):
            raise RuntimeError(f"array {self.arrays[_MISFIT - code]!r} does not fit in {self._what(arrays)}")
        raise RuntimeError(f"{self._what(arrays)} failed; this is a bug: set TOPOMASK_NATIVE=0 to avoid it")

    def _what(self, arrays: Sequence[Tensor | None]) -> str:
        forms = (f"{name} {list(x.shape)} {x.dtype}" for name, x in zip(self.arrays, arrays) if x is not None)
        return f"the compiled function {self.name!r} ({', '.join(forms)})"


OPS: "dict[str, CompiledOp]" = {}
"""All operations that exist, by name."""


class CompiledOp:
    """A differentiable operation: a compiled function, and the same in plain torch for all that it does not serve.

    A subclass says what the attributes and methods below say, and is made once, as a constant of its module. A call
    takes all ``arrays`` (:obj:`None` for one that is absent) and then all ``numbers``. On CPU, in float32 and float64,
    the compiled function answers; where `refuses` gives a reason, the `twin` does. Gradients that are differentiated
    again are those of the twin. Where torch records or maps a call, it sees the `Operators`; programs with plain plans
    hold the twin.

    The compiled function gets the arrays (or what `prepare` makes of them), the results, the gradients of the results
    that have one, and room for the gradients of the first ``differentiable`` arrays, in this order. In the forward
    pass, all gradients are absent; in the backward pass, those that nobody wants, and the results unless the operation
    ``keeps_results``.
    """

    library: str
    """Name of the library."""
    name: str
    """Name of the operation and of the compiled function."""
    arrays: tuple[str, ...]
    """Names of the arrays; those that end in ``?`` may be absent."""
    numbers: Mapping[str, type] = MappingProxyType({})
    """Names and types (`int`, `bool` or `float`) of the numbers."""
    results: tuple[str, ...]
    """Names of the results, which have the dtype of the first array."""
    differentiable: int
    """Number of the arrays with a gradient, which come first and have the dtype of the first one."""
    constant_results: int = 0
    """Number of the results that never have a gradient, which come last."""
    keeps_results = False
    """Whether the backward pass reads the results."""
    reads: tuple[str, ...] = ()
    """Names of the arrays that `prepare` returns, if they are others than ``arrays``; the first ones are the same."""
    reads_numbers: Mapping[str, type] = MappingProxyType({})
    """Names and types of the numbers that `prepare` returns, if they are others than ``numbers``."""
    with_gaps: tuple[str, ...] = ()
    """Arrays whose rows may have gaps between them; others are copied if there are gaps."""
    work_per_thread: int = 2**20
    """Work that is worth a second thread."""

    def __init__(self) -> None:
        self._count = len(self.arrays)
        names = [name.removesuffix("?") for name in self.arrays]
        self.moving = self.results[: len(self.results) - self.constant_results]
        grads = [f"grad_{name}" for name in (*self.moving, *names[: self.differentiable])]
        reads = self.reads or names
        self._entry = Entry(
            self.library, self.name, (*reads, *self.results, *grads), self.reads_numbers or self.numbers
        )
        self._with_gaps = [name in self.with_gaps for name in reads]
        if self.library:
            OPS[self.name], self._operators = self, Operators(self)

    def twin(self, *inputs: Any) -> Any:
        """The operation in plain torch."""
        raise NotImplementedError

    def shapes(self, *inputs: Any) -> Sequence[Sequence[int]]:
        """Shape of each result."""
        raise NotImplementedError

    def prepare(self, *inputs: Any) -> Sequence[Any]:
        """What the compiled function gets: its arrays, then its numbers."""
        return inputs

    def constant(self, *inputs: Any) -> int:
        """Number of the results without a gradient for these inputs, which come last."""
        return self.constant_results

    def work(self, *inputs: Any) -> int:
        """Work, in the unit of ``work_per_thread``."""
        raise NotImplementedError

    def examples(self) -> Iterator[tuple[Any, ...]]:
        """Inputs for the tests, in float64. Those with few numbers serve for numerical derivatives, too."""
        raise NotImplementedError

    def refuses(self, *inputs: Any) -> str | None:
        """Why the compiled function cannot serve, or should not; :obj:`None` if it can."""
        if plans.is_plain():
            return "programs run without this package"
        if loader.is_transformed():
            return "derivatives in forward mode and transforms of torch.func are left to plain torch"
        for number, x in enumerate(inputs[: self._count]):
            if x is None:
                continue
            if x.device.type != "cpu":
                return f"it runs on CPU only (got {x.device})"
            if number < self.differentiable and (x.dtype != inputs[0].dtype or DTYPES.get(x.dtype, 9) > 2):
                return f"it computes in float32 or float64 (got {inputs[0].dtype} and {x.dtype})"
            if not torch.compiler.is_compiling() and x.is_neg():  # operators of torch resolve them by themselves
                return "views of negated numbers are left to plain torch"
        return loader.missing(self.library)

    def __call__(self, *inputs: Any) -> Any:
        """The result, or all results."""
        if torch.compiler.is_compiling() and not plans.is_plain():
            return (self._operators.forward if self._compiles(*inputs) else self.twin)(*inputs)
        tensors = inputs[: self._count]
        if self.refuses(*inputs) is not None or loader.is_traced() or any(type(x) not in _ORDINARY for x in tensors):
            return self.twin(*inputs)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            return _Differentiable.apply(self, *inputs)
        return self.compute(*inputs)

    def _compiles(self, first: Tensor, *rest: Any) -> bool:
        """Whether the compiled function serves, as far as tracing can know."""
        return first.device.type == "cpu" and DTYPES.get(first.dtype, 9) <= 2 and loader.missing(self.library) is None

    def compute(self, *inputs: Any) -> Any:
        """The results of the compiled function."""
        results = [inputs[0].new_empty(shape) for shape in self.shapes(*inputs)]
        self.run(inputs, results)
        return results[0] if len(results) == 1 else tuple(results)

    def backward(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], results: list[Tensor | None], grads: list[Tensor]
    ) -> Sequence[Tensor | None]:
        """Gradients of the first arrays by the compiled function; :obj:`None` where they are not needed."""
        room = [x.new_empty(x.shape) if needs else None for x, needs in zip(inputs, needed)]
        self.run(inputs, results, grads, room)
        return room

    def run(
        self,
        inputs: tuple[Any, ...],
        results: Sequence[Tensor | None],
        grads: Sequence[Tensor] = (),
        room: Sequence[Tensor | None] = (),
    ) -> None:
        """Call the compiled function, which fills the results, or ``room`` if there are gradients."""
        given = self.prepare(*inputs)
        arrays = [
            x if x is None or (x.stride(-1) == 1 if gaps else x.is_contiguous()) else x.contiguous()
            for x, gaps in zip(given, self._with_gaps)
        ]
        numbers = given[len(arrays) :]
        arrays += [*results, *grads, *room]
        arrays += [None] * (len(self._entry.arrays) - len(arrays))
        threads = loader.num_threads(self.work(*inputs), self.work_per_thread)
        self._entry(arrays, *numbers, threads=threads)

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the backward pass reads."""
        results = (output,) if isinstance(output, Tensor) else output
        ctx.numbers = inputs[self._count :]
        ctx.save_for_backward(*inputs[: self._count], *(results if self.keeps_results else ()))
        if constant := self.constant(*inputs):
            ctx.mark_non_differentiable(*results[-constant:])
        ctx.set_materialize_grads(False)

    def gradients(self, ctx: Any, needs: Sequence[bool], grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, from what `keep` has kept and the gradients of the results."""
        saved = ctx.saved_tensors  # read once, or checkpoints complain
        inputs, results = (*saved[: self._count], *ctx.numbers), saved[self._count :] or [None] * len(self.results)
        first, grads = inputs[: self.differentiable], grads[: len(self.moving)]
        needed = [need and x is not None for need, x in zip(needs, first)]
        if torch.is_grad_enabled():
            found = self.twin_gradients(needed, inputs, grads)
        else:
            shapes = self.shapes(*inputs)
            filled = [
                saved[0].new_zeros(shape) if grad is None else grad.contiguous() for grad, shape in zip(grads, shapes)
            ]
            seen = any(type(x) not in _ORDINARY for x in filled)  # by torch.compile
            found = (self._operators if seen or is_mapped(*filled) else self).backward(needed, inputs, results, filled)
        return *found, *(None,) * (len(inputs) - len(first))

    def twin_gradients(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], grads: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Gradients of the first arrays by the twin, which can be differentiated again."""
        first = inputs[: self.differentiable]
        views = [None if x is None else x.view_as(x) for x in first]  # the same tensor twice has two gradients
        with torch.autocast(inputs[0].device.type, enabled=False):  # a backward pass may run inside of autocast
            output = self.twin(*views, *inputs[len(first) :])
            results = (output,) if isinstance(output, Tensor) else output
            outputs = [result for result, grad in zip(results, grads) if grad is not None]
            given = [grad for grad in grads if grad is not None]
            wanted = [x for x, needs in zip(views, needed) if needs and x is not None]
            if not (given and wanted):
                return [None] * len(first)
            found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
        return [next(found) if needs else None for needs in needed]


_ORDINARY = (Tensor, Parameter, type(None))


class _Differentiable(torch.autograd.Function):
    """A call with gradients. The dispatch of torch.library would take twice as long as the rest of a small call."""

    @staticmethod
    def forward(ctx: Any, op: CompiledOp, *inputs: Any) -> Any:
        output = op.compute(*inputs)
        op.keep(ctx, inputs, output)
        ctx.op = op
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *ctx.op.gradients(ctx, ctx.needs_input_grad[1:], grads)
