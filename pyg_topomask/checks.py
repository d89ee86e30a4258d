"""Checks of settings, made once where they enter the library; the error of values that are not finite; warnings."""

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from inspect import signature
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from pyg_topomask import plan as plans

__all__ = ["NonFiniteError", "readable"]

_warned: set[str] = set()


class NonFiniteError(ValueError):
    """NaN, infinity, or numbers so large that the next step would give them."""


def check_integer(name: str, value: int, least: int | None = None, reason: str = "") -> int:
    """Convert a setting to a Python integer; refuse other values and too small ones.

    Args:
        name: Name of the setting, for the message.
        value: Its value. NumPy integers and integer tensors without dimensions are accepted, booleans are not.
        least: Smallest allowed value; none if :obj:`None`.
        reason: Reason for the limit, for the message.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is below ``least``.
    """
    if plans.reading():  # it was checked when the plan was made, and may be a size that compiled code knows by name
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise TypeError(f"'{name}' must be an integer (got {value!r})") from None
    if least is not None and number < least:
        raise ValueError(f"'{name}' must be at least {least}{reason and f': {reason}'} (got {value})")
    return number


def check_choice(name: str, value: str | None, choices: Collection[str | None]) -> None:
    """Refuse a setting that is not one of ``choices``. Raises ValueError."""
    if value not in choices:
        raise ValueError(f"'{name}' must be one of {', '.join(map(str, choices))} (got {value!r})")


def check_names(taker: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names of arguments that ``taker`` does not take, and suggest the nearest one. Raises TypeError."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            takes = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'no such arguments'}"
            raise TypeError(f"{taker} takes no {name!r}: {takes}")


def check_keywords(make: Callable[..., Any], name: str, given: Iterable[str]) -> None:
    """Refuse keywords that a constructor does not take. Raises TypeError."""
    known = signature(make).parameters
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in known.values()):
        check_names(name, given, [key for key in known if key != "self"])


def check_dtype(module: Module, x: Tensor, name: str = "x") -> None:
    """Refuse an ``x`` that is no tensor or, outside of autocast, of a dtype that no parameter has. Raises TypeError."""
    if not isinstance(x, Tensor):
        given = type(x).__name__
        raise TypeError(f"{name!r} must be a tensor (got {given}); for HeteroData, call to_homogeneous() first")
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type):
        return
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    first = next(dtypes, x.dtype)
    if x.dtype != first and x.dtype not in dtypes:
        raise TypeError(
            f"{name!r} is {x.dtype}, but the parameters of {type(module).__name__} are {first}: use {name}.to({first})"
            + (f" or module.to({x.dtype})" if x.is_floating_point() else "")
        )


def check_floating(name: str, value: Tensor) -> None:
    """Refuse a tensor that does not hold floating-point numbers. Raises TypeError."""
    if not value.is_floating_point():
        raise TypeError(f"'{name}' must be floating point (got {value.dtype}); use .float()")


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability that is not in [0, 1). Raises ValueError."""
    if not 0 <= dropout < 1:  # also false for NaN
        raise ValueError(f"'dropout' must be a probability in [0, 1) (got {dropout})")


def check_heads(channels: int, heads: int) -> tuple[int, int]:
    """Both as Python integers, if ``heads`` divides ``channels``. Raises TypeError and ValueError."""
    channels, heads = check_integer("channels", channels, 1), check_integer("heads", heads, 1)
    if channels % heads != 0:
        raise ValueError(f"'channels' must be divisible by 'heads' (got {channels} and {heads})")
    return channels, heads


def check_grid_shape(grid_shape: Sequence[int]) -> tuple[int, ...]:
    """Sizes of a grid's axes as Python integers. Raises ValueError and TypeError."""
    if not isinstance(grid_shape, Sequence) or len(grid_shape) == 0:
        raise ValueError(f"'grid_shape' must hold the size of each axis, such as [8, 8] (got {grid_shape!r})")
    return tuple(check_integer("grid_shape", size, 1) for size in grid_shape)


def is_exporting() -> bool:
    """Whether ``torch.export`` is tracing."""
    return bool(getattr(torch.compiler, "is_exporting", lambda: False)())  # new in PyTorch 2.7


def readable(x: Tensor) -> bool:
    """Whether a check may read the values of ``x``: CUDA would have to wait, and ``torch.compile`` does not know them.

    Where it may not, `holds` checks later.
    """
    return not x.is_cuda and not torch.compiler.is_compiling() and not plans.reading()


def holds(condition: Tensor, message: str) -> bool:
    """Whether a condition, one boolean, is true.

    Where it is not `readable`, the answer is always true, and ``torch._assert_async`` checks it later.
    """
    if readable(condition):
        return bool(condition)
    if plans.reading():  # the graph was checked when the plan was made
        return True
    torch._assert_async(condition, message)
    return True


def warn_once(cause: str, message: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Give a warning unless one with the same cause was given before in this process.

    Python's own filter shows a warning again as soon as any code has used `warnings.catch_warnings`, as many libraries
    do in every step.

    Args:
        cause: What the warning is about.
        message: Its text.
        category: Its class.
        stacklevel: As in `warnings.warn`.
    """
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(message, category, stacklevel + 1)
