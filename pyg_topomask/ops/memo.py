"""Cache results that were computed from a batch's tensors for as long as those tensors exist."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache, wraps
from typing import Any, Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.weak import WeakIdKeyDictionary

from pyg_topomask import plan as plans
from pyg_topomask.ops.native.loader import is_transformed

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

    Within transforms of `torch.func` and in forward mode, results that are known are read, and others are not stored.
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
        if is_transformed():  # its result belongs to the transform
            try:
                return function(*args)
            except RuntimeError as error:
                raise RuntimeError(
                    f"{name} is not known of this batch, and torch.func and forward mode cannot compute it "
                    f"({error.__cause__ or error}): make the plan before, plan = attn.plan(graph), and call "
                    "attn(x, plan=plan)"
                ) from error
        # The stored result must not depend on the mode of the first call.
        with torch.inference_mode(False), torch.autocast(args[0].device.type, enabled=False):
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
            dtypes = [arg for arg in args if isinstance(arg, torch.dtype)]
            return plans.once(name, lambda: found(*args), dtype=dtypes[0] if dtypes else None)
        return found(*args)

    def found(*args: Any) -> Result:
        for arg in args:
            if isinstance(arg, Tensor) and arg.requires_grad:
                return function(*args)
        return (when_compiling if torch.compiler.is_compiling() else remembered)(*args)

    return call


def once_per_setting(most: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Keep the last ``most`` results of a function of settings: constants, which depend on no mode and no transform.

    Compiled code computes them, since ``torch.compile`` warns of caches.
    """

    def keep(function: Callable[..., Result]) -> Callable[..., Result]:
        kept = lru_cache(most)(torch.inference_mode(False)(function))

        @wraps(function)
        def call(*settings: Any) -> Result:
            return function(*settings) if torch.compiler.is_compiling() else outside(kept, *settings)

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

    Within transforms of `torch.func`, nothing is stored: new tensors belong to them, and have no memory later.
    """

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None or torch.compiler.is_compiling():
            return super().__get__(instance, owner)
        # A plan keeps the object together with its properties.
        with torch.inference_mode(False), plans.apart() if plans.making() else nullcontext():
            result = self._found(instance, stays=not is_transformed())
        plans.note(instance, self.name)
        return result


def outside(function: Callable[..., Result], *args: Any) -> Result:
    """The result of a function of numbers, which shall not belong to a transform of `torch.func`: a thread has none."""
    if not is_transformed():
        return function(*args)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured, to which a tensor may belong."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def is_learned(x: Tensor) -> bool:
    """Whether ``x`` may have a derivative: later in a backward pass, or now in forward mode or by `torch.func`."""
    return x.requires_grad or (not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
