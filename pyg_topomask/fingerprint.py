"""A hash of arbitrary values that is the same in every process: settings, graphs, transforms with their code."""

import hashlib
import inspect
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["stable_hash"]


def stable_hash(*values: Any) -> str:
    """Hash of values, as text: their content, and the settings and code of objects.

    Raises:
        TypeError: If a value has no state that can be compared, such as a random number generator.
    """
    return hashlib.sha256(describe(values).encode()).hexdigest()[:32]


_SAID_BY_REPR = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, PurePath, range, slice)


def describe(value: Any) -> str:
    """Text that is equal exactly if two values are, where the order of dictionaries and sets does not count."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is ... or isinstance(value, _SAID_BY_REPR):
        return repr(value)
    if isinstance(value, Tensor):
        return _describe_tensor(value)
    if isinstance(value, dict):
        items = sorted(f"{describe(key)}:{describe(item)}" for key, item in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(describe, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(describe, value)))}}}"
    if isinstance(value, CodeType):
        return f"code({value.co_code.hex()},{describe([*value.co_names, *value.co_consts])})"
    return _describe_object(value)


def _describe_tensor(value: Tensor) -> str:
    value = value.detach().cpu()
    if value.layout != torch.strided:
        value = value.to_sparse_coo().coalesce()
        return f"sparse({list(value.shape)},{describe([value.indices(), value.values()])})"
    row = value.resolve_conj().resolve_neg().contiguous().view(-1)
    return f"tensor({value.dtype},{list(value.shape)},{_digest(row.view(torch.uint8).numpy())})"


def _describe_object(value: Any) -> str:
    """The code of a function, or of the methods of an object, with what it holds."""
    kind = type(value)
    name = f"{getattr(value, '__module__', kind.__module__)}.{getattr(value, '__qualname__', kind.__qualname__)}"
    if hasattr(value, "__code__"):  # a function, or a method with its object
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, held, getattr(value, "__self__", None)]
        return f"{name}({describe(parts)})"
    if isinstance(value, (type, BuiltinFunctionType)):
        return name
    try:
        state = value.__reduce_ex__(2)[1:]  # what pickle needs to make an equal object
    except TypeError:
        message = "results that depend on one must not be stored: remove it from the transform, or disable the cache"
        raise TypeError(f"two objects of type {name} cannot be compared, so {message}") from None
    code = []
    for cls in kind.__mro__:
        for key, member in sorted(vars(cls).items()):
            method = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            code += [(cls.__qualname__, key, method.__code__)] if hasattr(method, "__code__") else []
    return f"{name}({_digest(describe(code).encode())},{describe(state)})"


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
