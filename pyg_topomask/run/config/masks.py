"""A section for each mask, ``topomask.mask_<name>``, built from the arguments of the mask's constructor."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

from pydantic import Field, PydanticSchemaGenerationError, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from pyg_topomask.nn import MASK
from pyg_topomask.nn.mask import Mask
from pyg_topomask.run.config.base import Section
from pyg_topomask.run.config.topomask import TopomaskConfig

_NOT_KEYS = ("self", "heads", "name", "table")
"""Arguments that the runner sets itself."""

_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""An entry under ``Args:`` in a docstring: names and text."""


def add_mask_sections() -> bool:
    """Add a section to ``topomask`` for each mask without one; return whether any was added."""
    added = {f"mask_{name}": cls for name, cls in MASK.items() if f"mask_{name}" not in TopomaskConfig.model_fields}
    for key, cls in added.items():
        section = mask_section(key, cls)
        description = f"Settings of topomask.mask {key.removeprefix('mask_')}."
        TopomaskConfig.model_fields[key] = FieldInfo(
            annotation=section, default_factory=section, description=description
        )
    if added:
        TopomaskConfig.model_rebuild(force=True)
    return bool(added)


def mask_section(key: str, cls: type[Mask]) -> type[Section]:
    """A section with the arguments of a mask's constructor that YAML can express.

    A required argument has the default None here; if it is not given, the constructor raises an error.
    """
    hints, texts, fields = get_type_hints(cls.__init__), _argument_texts(cls), {}
    for argument, parameter in inspect.signature(cls.__init__).parameters.items():
        hint = hints.get(argument, Any)
        if argument in _NOT_KEYS or parameter.kind is parameter.VAR_KEYWORD or not _is_plain(hint):
            continue
        given = parameter.default is not parameter.empty
        kind, default = (hint, parameter.default) if given else (hint | None, None)
        description = texts.get(argument, f"Argument of {cls.__name__}.")
        fields[argument] = (kind, Field(default=default, description=description))
    name = "".join(part.capitalize() for part in key.split("_"))
    section = create_model(f"{name}Config", __base__=Section, __module__=__name__, **fields)  # type: ignore[call-overload]
    section.__doc__ = f"``topomask.{key}``: settings of {cls.__name__}."
    globals()[section.__name__] = section  # where pickle finds the class
    return section


def _is_plain(hint: Any) -> bool:
    """Whether YAML can express a value of that type."""
    try:
        TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return False
    return True


def _argument_texts(cls: type) -> dict[str, str]:
    """The description of each argument in the class's docstring."""
    entries = _ENTRY.findall((inspect.getdoc(cls) or "").partition("\nArgs:\n")[2])
    plain = {names: re.sub(r":\w+:`(.*?)`", r"\1", " ".join(text.split())) for names, text in entries}
    return {name: text for names, text in plain.items() for name in names.split(", ")}
