"""Rules that all sections share: unknown keys, infinite numbers, and true or false as a number are refused."""

from __future__ import annotations

import ast
import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Probability = Annotated[float, Field(ge=0, lt=1)]


Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=2**16)]
"""A number of columns, heads or neighbours; wider layers do not fit into memory."""
MAX_DEPTH = 1000
"""Largest number of layers of a network."""

MAX_STEPS = 10_000
"""Largest number of values in a ``range(...)``; a longer one is a typing error."""


class Section(BaseModel):
    """One section of a config. The text below a key is its description."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        items = value if isinstance(value, (list, tuple)) else [value]
        annotation = cls.model_fields[info.field_name or ""].annotation
        if any(isinstance(item, bool) for item in items) and not _mentions_bool(annotation):
            raise ValueError("must not be true or false")
        if any(isinstance(item, str) and "\0" in item for item in items):
            raise ValueError("must not contain a null byte")
        return value


def _mentions_bool(annotation: Any) -> bool:
    """Whether a type is bool or Any, or contains one of them."""
    if annotation in (bool, Any) or isinstance(annotation, bool):
        return True
    return any(_mentions_bool(part) for part in get_args(annotation))


_RANGE = re.compile(r"range\(\s*(-?\d{1,9})\s*(?:,\s*(-?\d{1,9})\s*)?(?:,\s*(-?\d{1,9})\s*)?\)")


def parse_times(text: str) -> list[int] | list[float]:
    """Read the numbers of a text such as ``range(1, 17)`` or ``[1, 2, 5]``, without executing it.

    Raises:
        ValueError: If the text is neither a range nor a list, or has more than :data:`MAX_STEPS` numbers.
    """
    match = _RANGE.fullmatch(text.strip())
    if match:
        bounds = [int(part) for part in match.groups() if part is not None]
        if len(bounds) == 3 and bounds[2] == 0:
            raise ValueError("the step of a range must not be 0")
        numbers = range(*bounds)
        if len(numbers) > MAX_STEPS:
            raise ValueError(f"has {len(numbers)} numbers; at most {MAX_STEPS} are allowed")
        return list(numbers)
    try:
        numbers_read = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        numbers_read = None
    if isinstance(numbers_read, (list, tuple)) and all(type(number) in (int, float) for number in numbers_read):
        return list(numbers_read)
    raise ValueError("must be a range such as range(1,17) or a list of numbers; it is never executed")
