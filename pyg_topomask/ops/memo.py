"""Cache results that were computed from a batch's tensors for as long as those tensors exist."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

Result = TypeVar("Result")


def once_per_batch(function: Callable[..., Result], traced: bool = False) -> Callable[..., Result]:
    """Call ``function`` once for the same tensors, so that all layers share results that depend only on the graph.

    Results are stored by the identity and version of the tensor arguments, and are deleted together with the first of
    them. Therefore, the result must not contain the first argument or a view of it, which would keep it alive forever.
    The function is meant for tensors of a batch that do not require a gradient.

    A write in place is detected by the version counter of torch. Torch does not count writes through ``tensor.data`` or
    ``tensor.numpy()``, or any write to tensors created under `torch.inference_mode`; after such a write, the old result
    is returned. Write through the tensor itself, or create a new tensor (``tensor.clone()``).

    Args:
        function: Pure function of positional arguments; the first one is a tensor.
        traced: Whether ``torch.compile`` traces the function, so the sizes of its results must not depend on values.
            Compiled code then computes equal results once. Otherwise, tracing stops at the function.
    """
    results: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def remembered(*args: Any) -> Result:
        known: dict[Any, tuple[list[Any], Result]] = results.setdefault(args[0], {})
        key = tuple((id(arg), _version(arg)) if isinstance(arg, Tensor) else arg for arg in args)
        if key in known and all(alive() is not None for alive in known[key][0]):  # ids may be reused
            return known[key][1]
        # The stored result must not depend on the mode of the first call.
        with torch.inference_mode(False), torch.autocast(args[0].device.type, enabled=False):
            result = function(*args)
        for stale in [old for old in known if any(alive() is None for alive in known[old][0])]:
            del known[stale]
        known[key] = ([ref(arg) for arg in args if isinstance(arg, Tensor)], result)
        return result

    when_compiling = function if traced else torch.compiler.disable(remembered)

    @wraps(function)
    def call(*args: Any) -> Result:
        return (when_compiling if torch.compiler.is_compiling() else remembered)(*args)

    return call


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
