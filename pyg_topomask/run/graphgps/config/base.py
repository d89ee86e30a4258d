"""What all sections share: keys that note that they were read, keys without effect, and values that no key takes."""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Any, ClassVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

Probability = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=2**16)]
"""A number of columns, heads or neighbours; wider layers do not fit into memory."""
MAX_DEPTH = 1000
"""Largest number of layers of a network."""

MAX_STEPS = 10_000
"""Largest number of values in a ``range(...)``; a longer one is a typing error."""

NO_LOADERS = "GraphGym's output and loaders are not used"
FROM_DATA = "known from the data"
"""Reasons of keys without effect in several sections."""


_NOTED: ContextVar[bool] = ContextVar("noted", default=False)


@contextmanager
def noting_reads(noted: bool = True) -> Iterator[None]:
    """Let all sections note which of their keys are read: a key that nobody reads has no effect."""
    token = _NOTED.set(noted)
    try:
        yield
    finally:
        _NOTED.reset(token)


@dataclass(frozen=True)
class NoEffect:
    """Marks a key of GraphGPS and its forks that is accepted and not read; ``because`` is empty if one value is."""

    because: str = ""


@dataclass(frozen=True)
class AlsoCalled:
    """A name that other libraries give to a key; the message about it suggests the key."""

    name: str


class _Reads(set[str]):
    """Names of keys that were read, in which equal sections may differ."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reads)


class Section(BaseModel):
    """One section of a config.

    A new key is one line in its section: type, default, and its description as the text below it. The checks, the list
    of keys, the JSON schema and the documentation read them there. Within `noting_reads`, a section notes which keys
    are read; copies share these notes, deep copies do not.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True)

    no_effect_because: ClassVar[dict[str, str]] = {}
    """Reasons, with the names of keys of GraphGPS and its forks that are accepted and not read."""
    only: ClassVar[str] = ""
    """Keys that are accepted with a single value, as YAML, because nothing else is provided."""

    _read: set[str] = PrivateAttr(default_factory=_Reads)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if _NOTED.get() and name in type(self).model_fields:
            self._read.add(name)
        return value

    def peek(self, name: str) -> Any:
        """The value of a key, without a note that it is read."""
        return self.__dict__[name]

    def chooses(self, name: str, value: Any) -> bool:
        """Whether a key has this value; only then it counts as read."""
        chosen = self.__dict__[name] == value
        if chosen and _NOTED.get():
            self._read.add(name)
        return chosen

    def agrees(self, name: str, *values: Any) -> bool:
        """Whether a key has one of these values, which others decide; the note says that it is read."""
        self._read.add(name)
        return self.__dict__[name] in values

    def __init_subclass__(cls, **settings: Any) -> None:
        """Make a field of each key in ``no_effect_because`` and ``only``."""
        super().__init_subclass__(**settings)
        for reason, names in cls.__dict__.get("no_effect_because", {}).items():
            for name in names.split():
                cls.__annotations__[name] = Annotated[Any, NoEffect(reason), BeforeValidator(lambda value: None)]
                setattr(cls, name, Field(default=None, exclude=True, description=f"No effect: {reason}."))
        for name, value in yaml.safe_load(f"{{{cls.__dict__.get('only', '')}}}").items():
            cls.__annotations__[name] = Annotated[Any, NoEffect(), AfterValidator(partial(_refuse_other, value))]
            text = f"Always {json.dumps(value)}: nothing else is provided."
            setattr(cls, name, Field(default=value, exclude=True, description=text))

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """Pairs (key, what is wrong) of values of this section that are valid one by one and contradict others."""
        yield from ()

    @model_validator(mode="before")
    @classmethod
    def _empty_as_defaults(cls, values: Any) -> Any:
        return {} if values is None else values  # YAML reads an empty section as null

    @field_validator("*", mode="before")
    @classmethod
    def _of_the_right_kind(cls, value: Any, info: Any) -> Any:
        items = value if isinstance(value, (list, tuple)) else [value]
        annotation = cls.model_fields[info.field_name].annotation
        if any(isinstance(item, bool) for item in items) and not _mentions_bool(annotation):
            raise ValueError("must not be true or false")
        if any(isinstance(item, str) and re.match(r"[-+]?0\d", item) for item in items) and not takes_text(annotation):
            raise ValueError("must not start with 0, which YAML 1.1 reads as octal")
        is_number = isinstance(value, (int, float, date)) and not isinstance(value, bool)
        return str(value) if is_number and takes_text(annotation) else value


def _refuse_other(only: Any, value: Any) -> Any:
    if (value, type(value)) != (only, type(only)):
        raise ValueError(f"must be {json.dumps(only)}: nothing else is provided")
    return value


def takes_text(annotation: Any) -> bool:
    """Whether all values of a type are texts or None, such as those of names, which may look like numbers."""
    return {*(get_args(annotation) or [annotation])} <= {str, type(None)}


def spelled(**ours: Any) -> BeforeValidator:
    """Reads other spellings of a value as ours; written behind the type of a key."""
    return BeforeValidator(lambda value: ours.get(value, value) if isinstance(value, str) else value)


def _mentions_bool(annotation: Any) -> bool:
    """Whether a type is bool or Any, or contains one of them."""
    if annotation in (bool, Any) or isinstance(annotation, bool):
        return True
    return any(_mentions_bool(part) for part in get_args(annotation))


def parse_times(text: str) -> list[int] | list[float]:
    """Read the numbers of a text such as ``range(1, 17)`` or ``[1, 2, 5]``, without executing it.

    Raises:
        ValueError: If the text is neither a range nor a list of numbers, or has more than :data:`MAX_STEPS`.
    """
    is_range, bounds = text.strip().startswith("range("), text.strip().removeprefix("range")
    try:
        found = ast.literal_eval(bounds)
        numbers = range(*(found if isinstance(found, tuple) else (found,))) if is_range else [*found]
        count = len(numbers)
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError):
        numbers, count = [None], 1
    if count > MAX_STEPS:
        raise ValueError(f"has {count} numbers; at most {MAX_STEPS} are allowed")
    if not all(type(number) in (int, float) and abs(number) < 2**63 for number in numbers):
        raise ValueError("must be a range such as range(1,17) or a list of numbers; it is never executed")
    return list(numbers)
