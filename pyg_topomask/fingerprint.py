"""Texts and hashes that two values share only if they are equal; they are the same in every process."""

from __future__ import annotations

import hashlib
import inspect
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor


def stable_hash(*values: Any) -> str:
    """Hash of any values that :func:`describe` accepts, 32 hexadecimal digits.

    Raises:
        TypeError: If a value contains an object without comparable state, such as a random number generator.
    """
    return hashlib.sha256(describe(values).encode()).hexdigest()[:32]


def describe(value: Any, within: tuple[int, ...] = ()) -> str:
    """Text that two values share only if their contents, code and settings are equal.

    Functions are distinguished by their code, defaults and closures, and objects by their class, the code of its
    methods, and their attributes. (The ``repr`` of many transforms is only their class name, so it does not show their
    settings.) Functions and values that code refers to by a global name are not followed.

    Args:
        value: Value to describe.
        within: Identities of the enclosing containers and objects, so that cycles end.

    Raises:
        TypeError: If it contains an object without comparable state, such as a random number generator.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, PurePath, range, slice)):
        return f"{type(value).__qualname__}({value!r})"
    if id(value) in within:
        return f"cycle({len(within) - within.index(id(value))})"
    within = (*within, id(value))
    if isinstance(value, Tensor):
        return _describe_tensor(value, within)
    if isinstance(value, np.ndarray):
        content = describe(value.tolist(), within) if value.dtype.hasobject else _digest(value.tobytes())
        return f"array({value.dtype},{value.shape},{content})"
    if isinstance(value, dict):
        items = sorted(f"{describe(key, within)}:{describe(item, within)}" for key, item in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(describe(item, within) for item in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(describe(item, within) for item in value))}}}"
    return _describe_object(value, within)


def _describe_tensor(value: Tensor, within: tuple[int, ...]) -> str:
    value = value.detach().cpu()
    if value.layout != torch.strided:
        value = value.to_sparse_coo().coalesce()
        return f"sparse({list(value.shape)},{describe([value.indices(), value.values()], within)})"
    row = value.resolve_conj().resolve_neg().contiguous().view(-1)
    return f"tensor({value.dtype},{list(value.shape)},{_digest(row.view(torch.uint8).numpy())})"


def _describe_object(value: Any, within: tuple[int, ...]) -> str:
    if isinstance(value, partial):
        return f"partial({describe([value.func, value.args, value.keywords], within)})"
    if isinstance(value, CodeType):
        return f"code({value.co_code.hex()},{describe([*value.co_names, *value.co_consts], within)})"
    kind = type(value)
    name = f"{getattr(value, '__module__', kind.__module__)}.{getattr(value, '__qualname__', kind.__qualname__)}"
    if hasattr(value, "__code__"):  # a function, or a method with its object
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, held, getattr(value, "__self__", None)]
        return f"{name}({describe(parts, within)})"
    if isinstance(value, (type, BuiltinFunctionType)):
        return name
    slots = [slot for cls in kind.__mro__ for slot in getattr(cls, "__slots__", ())]
    if not slots and not hasattr(value, "__dict__"):
        message = "results that depend on one must not be stored: remove it from the transform, or disable the cache"
        raise TypeError(f"two objects of type {name} cannot be compared, so {message}")
    state = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return f"{name}({_describe_methods(kind)},{describe(state | getattr(value, '__dict__', {}), within)})"


def _describe_methods(kind: type) -> str:
    """Hash of the code of all methods, also of properties and of static ones."""
    found = []
    for cls in kind.__mro__:
        for key, value in sorted(vars(cls).items()):
            method = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
            if hasattr(method, "__code__"):
                found.append((cls.__qualname__, key, method.__code__))
    return _digest(describe(found).encode())


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()
