"""The transform that adds an attribute, found by the attributes that each transform declares."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from typing import Any

from torch_geometric.transforms import Compose

from pyg_topomask.checks import check_names
from pyg_topomask.transforms.base import GraphTransform


def that_add(requires: Iterable[str], **settings: Any) -> Compose:
    """The transforms that add these attributes to a graph, in their order.

    .. code-block:: python

        prepare = that_add(attn.requires, seed=0, **attn.transform_settings)
        attn(x, graph=prepare(graph))

    Args:
        requires: Names of attributes, such as ``mask.requires``. Those that no transform adds are part of the data.
        settings: Arguments for those of the transforms whose constructor takes them.

    Raises:
        TypeError: If no transform takes one of the settings.
    """
    known = {key for cls in _known(GraphTransform) for key in signature(cls).parameters}
    check_names("that_add()", settings, sorted(known))
    return Compose([cls(**_taken(cls, settings)) for cls in _adding(requires, settings)])


def text_of(requires: Iterable[str], settings: dict[str, Any]) -> str:
    """The transforms of :func:`that_add` with the settings that differ from their defaults; empty if there are none."""
    return " and ".join(f"{cls.__name__}({_arguments(cls, settings)})" for cls in _adding(requires, settings))


def _adding(requires: Iterable[str], settings: dict[str, Any]) -> list[type[GraphTransform]]:
    chosen: list[type[GraphTransform]] = []
    for attribute in requires:
        if not any(_adds(cls, attribute, settings) for cls in chosen):
            chosen += [cls for cls in _known(GraphTransform) if _adds(cls, attribute, settings)][:1]
    return chosen


def _known(base: type[GraphTransform]) -> Iterator[type[GraphTransform]]:
    """All transforms that declare what they add, also those of users."""
    for cls in base.__subclasses__():
        if "adds" in vars(cls):
            yield cls
        yield from _known(cls)


def _adds(cls: type[GraphTransform], attribute: str, settings: dict[str, Any]) -> bool:
    parameter = signature(cls).parameters.get("name")
    name = settings.get("name", None if parameter is None else parameter.default)
    return any(fnmatchcase(attribute, pattern.format(name=name)) for pattern in cls.adds)


def _taken(cls: type[GraphTransform], settings: dict[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in signature(cls).parameters if key in settings}


def _arguments(cls: type[GraphTransform], settings: dict[str, Any]) -> str:
    defaults = {key: parameter.default for key, parameter in signature(cls).parameters.items()}
    needed = {key for key, default in defaults.items() if default is Parameter.empty}
    given = {key: repr(value) for key, value in _taken(cls, settings).items() if value != defaults[key]}
    return ", ".join(f"{key}={given.get(key, '…')}" for key in defaults if key in needed | given.keys())
