"""Modules that remember how they were made, and the operator by which an exported program calls them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.data import Data

from pyg_topomask.checks import check_keywords


class Recorded(Module):
    """A module that remembers the arguments of its constructor, so that `call_in_program` can build it again."""

    classes: ClassVar[dict[str, type[Recorded]]] = {}
    """All such classes by their full names."""
    _made_with: dict[str, Any]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        Recorded.classes[_name_of(cls)] = cls
        if "__init__" not in vars(cls):
            return
        make: Callable[..., None] = cls.__init__
        _, *names = signature(make).parameters

        @wraps(make)
        def record(self: Recorded, *given: Any, **named: Any) -> None:
            check_keywords(make, type(self).__name__, named)
            make(self, *given, **named)
            self._made_with = dict(zip(names, given)) | named  # the constructor of the subclass is the last to do so

        cls.__init__ = record  # type: ignore[method-assign, assignment]


def call_in_program(module: Recorded, x: Tensor, batch: Tensor | None, graph: Data | None, carry: Any = None) -> Any:
    """Let an exported program call a module as one operator, ``topomask::module``.

    The program keeps the module's class, its arguments and the names of its inputs as text. The operator builds the
    module from them in the process where the program runs, and calls it with the program's tensors. It has no gradient.

    Raises:
        RuntimeError: If the module is in training mode, cannot be made from its arguments, or was changed afterwards.
    """
    name = type(module).__name__
    if module.training:
        raise RuntimeError(f"torch.export takes {name} in evaluation mode only: call model.eval() first")
    given: dict[str, Any] = {"x": x, "batch": batch, "carry": carry}
    given |= {f"graph.{key}": value for key, value in (graph or Data()).to_dict().items()}
    given |= {f"state.{key}": value for key, value in _state(module).items()}
    given = {key: value for key, value in given.items() if isinstance(value, Tensor)}
    width = getattr(module, "out_width", x.size(1))
    recipe = json.dumps([list(given), module, width], default=_as_json)
    with _disable_current_modes():  # the copy must not become a part of the program
        copy = _built(recipe, threading.get_ident())
    if _settings(copy) != _settings(module):
        raise RuntimeError(f"torch.export cannot take this {name}, because it was changed after it was made")
    out = _call(list(given.values()), recipe)
    return out[0] if carry is None else tuple(out)


@torch.library.custom_op("topomask::module", mutates_args=())
def _call(tensors: Sequence[Tensor], recipe: str) -> list[Tensor]:
    given = dict(zip(json.loads(recipe)[0], tensors))

    def part(kind: str) -> dict[str, Tensor]:
        return {key.removeprefix(kind): value for key, value in given.items() if key.startswith(kind)}

    x, more = given["x"], {"carry": given["carry"]} if "carry" in given else {}
    graph = Data(**part("graph."), num_nodes=x.size(0)) if part("graph.") else None
    module = _built(recipe, threading.get_ident())
    with torch.no_grad():
        out = torch.func.functional_call(module, part("state."), (x, given.get("batch"), graph), more)
    return [result.clone() for result in (out if isinstance(out, tuple) else [out])]  # results must not be views


@_call.register_fake
def _(tensors: Sequence[Tensor], recipe: str) -> list[Tensor]:
    names, _, width = json.loads(recipe)
    given = dict(zip(names, tensors))
    carry = [torch.empty_like(given["carry"])] if "carry" in given else []
    return [given["x"].new_empty(given["x"].size(0), width), *carry]


@lru_cache(maxsize=256)
def _built(recipe: str, thread: int) -> Module:
    """The module of a recipe, in evaluation mode; another one for each thread, since calls exchange its parameters."""
    with torch.random.fork_rng(devices=[]):
        module: Module = json.loads(recipe, object_hook=_from_json)[1]
    return module.eval()


def _as_json(value: Any) -> Any:
    """A constructor argument that is no number, text or list, as what JSON can hold."""
    if isinstance(value, Recorded):
        return {"class": _name_of(type(value)), "arguments": value._made_with}
    if isinstance(value, range):
        return list(value)
    raise RuntimeError(f"torch.export takes attentions and masks whose arguments are numbers and texts (got {value!r})")


def _from_json(found: dict[str, Any]) -> Any:
    if "class" not in found:
        return found
    if found["class"] not in Recorded.classes:
        raise RuntimeError(f"the program calls {found['class']}: import its module first")
    return Recorded.classes[found["class"]](**found["arguments"])


def _settings(module: Module) -> list[Any]:
    """Classes and settings of all parts of a module, and shapes of its parameters."""
    return [(name, value.shape) for name, value in _state(module).items()] + [
        (name, type(part), key, value)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key[0] != "_" and isinstance(value, bool | int | float | str | None)
    ]


def _state(module: Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
