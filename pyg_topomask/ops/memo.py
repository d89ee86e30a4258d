"""Cache results that were computed from a batch's tensors for as long as those tensors exist."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from typing import Any, Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils.weak import WeakIdKeyDictionary

from pyg_topomask import plan as plans

Result = TypeVar("Result")


def once_per_batch(function: Callable[..., Result], traced: bool = False) -> Callable[..., Result]:
    """Call ``function`` once for the same tensors, so that all layers share results that depend only on the graph.

    Results are stored by the identity and version of the tensor arguments, and are deleted together with the first of
    them. Therefore, the result must not contain the first argument or a view of it, which would keep it alive forever.
    Nothing is stored for tensors that may have a derivative: the result would refer to an autograd graph that is freed
    by its first backward pass.

    A write in place is detected by the version counter of torch. Torch does not count writes through ``tensor.data`` or
    ``tensor.numpy()``, or any write to tensors created under `torch.inference_mode`; after such a write, the old result
    is returned. Write through the tensor itself, or create a new tensor (``tensor.clone()``).

    While a CUDA graph is captured, which would keep the results of one batch, only plans answer; other calls raise.

    Args:
        function: Pure function of positional arguments; the first one is a tensor.
        traced: Whether ``torch.compile`` traces the function, so the sizes of its results must not depend on values.
            Compiled code then computes equal results once. Otherwise, tracing stops at the function.
    """
    results: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def remembered(*args: Any) -> Result:
        known: dict[Any, tuple[list[Any], Result]] = results.setdefault(args[0], {})
        of_args = ((id(arg), _version(arg)) if isinstance(arg, Tensor) else arg for arg in args)
        if is_captured(args[0]):
            if traced:
                return function(*args)
            raise RuntimeError(
                f"a CUDA graph is being captured, and each replay would read {name} of this batch: make the plan of "
                "each batch before, plan = model.plan(batch), and capture model(x, edge_index, plan=plan)"
            )
        key = plans.making(), plans.is_plain(), *of_args
        if key in known and all(alive() is not None for alive in known[key][0]):  # ids may be reused
            return known[key][1]
        # The stored result must not depend on the mode of the first call.
        with torch.inference_mode(False), torch.autocast(args[0].device.type, enabled=False), outside_transforms():
            result = function(*args)
        for stale in [old for old in known if any(alive() is None for alive in known[old][0])]:
            del known[stale]
        known[key] = ([ref(arg) for arg in args if isinstance(arg, Tensor)], result)
        return result

    name = f"{function.__module__}.{function.__qualname__}"
    when_compiling = function if traced else torch.compiler.disable(remembered)

    @wraps(function)
    def call(*args: Any) -> Result:
        if plans.planned() and not traced:
            return plans.once(name, lambda: found(*args))
        return found(*args)

    def found(*args: Any) -> Result:
        compiling = torch.compiler.is_compiling()
        if not compiling and (forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None):
            args = tuple(_plain(x) if isinstance(x, Tensor) and not x.is_floating_point() else x for x in args)
            if any(is_learned(arg) for arg in args if isinstance(arg, Tensor)):
                return function(*args)
        for arg in args:
            if isinstance(arg, Tensor) and arg.requires_grad:
                return function(*args)
        return (when_compiling if compiling else remembered)(*args)

    return call


def once_per_setting(most: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Keep the last ``most`` results of a function of settings: constants, which depend on no mode and no transform.

    Compiled code computes them, since ``torch.compile`` warns of caches.
    """

    def keep(function: Callable[..., Result]) -> Callable[..., Result]:
        kept = lru_cache(most)(torch.inference_mode(False)(on_values(function)))

        @wraps(function)
        def call(*settings: Any) -> Result:
            return function(*settings) if torch.compiler.is_compiling() else kept(*settings)

        return call

    return keep


class cached(Generic[Result]):  # noqa: N801
    """A `functools.cached_property` without a lock, which ``torch.compile`` can trace.

    What a function finds that is a part of a plan does not stay in other objects, where a run with the plan misses it.
    """

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        return self._found(instance, stays=not plans.inside())

    def _found(self, instance: Any, stays: bool) -> Result:
        result = self.function(instance)
        if stays:
            object.__setattr__(instance, self.name, result)
        return result


class kept_property(cached[Result]):  # noqa: N801
    """A `cached` property whose tensors also serve training if they are first read in inference mode.

    Within nested transforms of `torch.func`, nothing is stored: new tensors belong to them, and have no memory later.
    """

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None or torch.compiler.is_compiling():
            return super().__get__(instance, owner)
        # A plan keeps the object together with its properties.
        with torch.inference_mode(False), plans.apart() if plans.making() else nullcontext():
            result = self._found(instance, stays=(torch._C._functorch.maybe_current_level() or 0) <= 1)
        plans.note(instance, self.name)
        return result


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured, to which a tensor may belong."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def is_learned(x: Tensor) -> bool:
    """Whether ``x`` may have a derivative: later in a backward pass, or now in forward mode or by `torch.func`."""
    if x.requires_grad or torch.compiler.is_compiling():
        return x.requires_grad
    return is_wrapped(x) or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None)


def outside_transforms(*tensors: Tensor) -> AbstractContextManager[Any]:
    """Leave the transforms of `torch.func`, to compute what is stored for longer than they last.

    Inside of them, new tensors belong to the transform. Nothing changes if one of ``tensors`` does so already.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is None:
        return nullcontext()
    return nullcontext() if any(map(is_wrapped, tensors)) else temporarily_clear_interpreter_stack()


def is_wrapped(x: Tensor) -> bool:
    """Whether a tensor belongs to a transform of `torch.func`, and has no memory of its own."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def on_values(function: Callable[..., Result]) -> Callable[..., Result]:
    """Call ``function``, whose result has no derivative, with the values of its tensors, outside of transforms."""

    @wraps(function)
    @torch.no_grad()
    def call(*args: Any, **settings: Any) -> Result:
        if torch.compiler.is_compiling():
            return function(*args, **settings)
        # Integers stay the same tensors, for which `once_per_batch` knows results.
        values = [arg.detach() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
        values = [_plain(arg) if isinstance(arg, Tensor) else arg for arg in values]
        with outside_transforms():
            return function(*values, **settings)

    return call


def _plain(x: Tensor) -> Tensor:
    """The values of a tensor that transforms other than `torch.vmap` have wrapped."""
    while is_wrapped(x) and not torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
