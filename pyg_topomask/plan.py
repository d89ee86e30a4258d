"""What layers know of a batch before they run: computed once, on the host, and passed to them as a value."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey, register_pytree_node

Spec = list[Any]
"""What a plan consists of besides its tensors, in lists, numbers and texts."""


class Plan:
    """What an attention, a mask or a model has to know of a batch, without any number that is learned.

    ``module.plan(…)`` makes it: this may wait for a device, count pairs and choose engines. ``module(…, plan=plan)``
    then is a function of tensors, for ``torch.compile(fullgraph=True)``, ``torch.export`` and CUDA graphs: nothing
    waits, and no size depends on values. A plan is frozen, and a pytree whose leaves are tensors. Numbers that differ
    between batches are sizes of its tensors.

    Args:
        given: What the module reads of the graph.
        kept: Results of the functions that `once_per_batch` calls once for a batch, in the order of their calls.
        parts: Plans of the parts of a model; equal parts have the same object.
    """

    given: dict[str, Any]
    kept: dict[str, list[Any]]
    parts: dict[str, Plan]

    def __init__(
        self,
        given: dict[str, Any] | None = None,
        kept: dict[str, list[Any]] | None = None,
        parts: dict[str, Plan] | None = None,
    ) -> None:
        self.__dict__.update(given=given or {}, kept=kept or {}, parts=parts or {})

    def __getattr__(self, name: str) -> Any:
        if name not in ("given", "kept", "parts") or "_leaves" not in vars(self):
            raise AttributeError(f"a plan has no {name!r}")
        vars(self).update(_Reader(self._leaves, None).read(self._spec))
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a plan is frozen: make a new one by plan(…) (got {name!r})")

    @property
    def batch(self) -> Tensor | None:
        """Graph of each node, ``[N]``; one graph if :obj:`None`."""
        return self.given.get("batch")

    @property
    def num_graphs(self) -> int:
        """Number of graphs ``B``."""
        return self.given["ptr"].size(0) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(leaf.nbytes for leaf in _flatten(self)[0])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Plan:
        """The plan on another device."""
        return self._changed(lambda x: x.to(device, non_blocking=non_blocking), torch.device(device))

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Plan:
        """The plan on a GPU, the current one if :obj:`None`: PyG's ``batch.cuda()`` calls this."""
        return self.to(torch.device("cuda", torch.cuda.current_device() if device is None else device), non_blocking)

    def cpu(self) -> Plan:
        """The plan on the CPU."""
        return self.to("cpu")

    def pin_memory(self) -> Plan:
        """The plan in pinned memory."""
        return self._changed(Tensor.pin_memory)

    def _changed(self, change: Callable[[Tensor], Tensor], device: torch.device | None = None) -> Plan:
        leaves, spec = _flatten(self)
        return Plan(**_Reader([change(leaf) for leaf in leaves], device).read(spec))

    def __reduce__(self) -> Any:
        return _unflatten, _flatten(self)

    def __repr__(self) -> str:
        return f"Plan({self.nbytes:,} bytes)"


def part(plan: Plan, number: int) -> Plan:
    """The plan of a part of a module. Raises ValueError if there is none."""
    if str(number) not in plan.parts:
        raise ValueError(f"the plan has no part {number}: it is of another module; make one by plan(…) of this one")
    return plan.parts[str(number)]


class _Active:
    """The plan that is being made, or read, and how many results of each function were read from it."""

    def __init__(self, plan: Plan, makes: bool, like: Plan | None = None, is_apart: bool = False) -> None:
        self.plan, self.makes, self.like, self.is_apart = plan, makes, like, is_apart
        self.properties: list[tuple[Any, str]] = []  # what objects of the plan have kept meanwhile
        self.taken: dict[str, int] = {}


class _State(threading.local):
    """Each thread has its own plan: one may prepare batches while another trains."""

    active: _Active | None = None
    is_plain = False
    grid: Callable[[int], int] | None = None


_state = _State()


def making() -> bool:
    """Whether a plan is being made."""
    return _state.active is not None and _state.active.makes


def reading() -> bool:
    """Whether a module runs with a plan."""
    return _state.active is not None and not _state.active.makes


def num_graphs() -> int | None:
    """Number of graphs of the plan that is being made or read; :obj:`None` if there is none."""
    ptr = None if _state.active is None else _state.active.plan.given.get("ptr")
    return None if ptr is None else ptr.size(0) - 1


def is_plain() -> bool:
    """Whether plans are made for programs, which run in plain torch."""
    return _state.is_plain


@contextmanager
def _meanwhile(name: str, value: Any) -> Iterator[None]:
    """Let the state of this thread have another value."""
    before = getattr(_state, name)
    setattr(_state, name, value)
    try:
        yield
    finally:
        setattr(_state, name, before)


def plain() -> AbstractContextManager[None]:
    """Make plans for programs meanwhile, without compiled functions."""
    return _meanwhile("is_plain", True)


def on_grid(size: Callable[[int], int] | None) -> AbstractContextManager[None]:
    """Make plans meanwhile whose lists of pairs and blocks have sizes ``size(count)``; their own if :obj:`None`."""
    return _meanwhile("grid", size)


def is_padded() -> bool:
    """Whether plans are made on a grid, of batches that end with dummy graphs."""
    return _state.grid is not None


def padded(count: int) -> int:
    """Size of a list of ``count`` pairs in a plan. Further pairs are those of the last node, a dummy, with itself."""
    return count if _state.grid is None else _state.grid(count)


def real_rows(count: int, batch: Tensor | None = None, node: Tensor | None = None) -> Tensor | None:
    """Whether each of ``count`` rows belongs to a real graph, in a run with the plan of a padded batch, else None.

    Args:
        count: Number of rows.
        batch: Graph of each row, if it is known.
        node: A node of each row. Otherwise, rows are the nodes, or the edges if there are as many.

    Raises:
        ValueError: If rows are neither of nodes nor of edges.
    """
    plan = _state.active.plan if _state.active is not None and not _state.active.makes else None
    if plan is None or plan.given.get("real_graphs") is None:
        return None
    edge_index = plan.given.get("edge_index")
    if batch is None and node is None and count != plan.given["batch"].numel():
        if edge_index is None or count != edge_index.size(1):
            raise ValueError(f"a norm of {count} rows, neither nodes nor edges, cannot leave out the graphs of Buckets")
        node = edge_index[0]
    batch = plan.given["batch"] if batch is None else batch
    return plan.given["real_graphs"][batch if node is None else batch[node]]


def inside() -> bool:
    """Whether a function runs of which a plan that is being made keeps the result alone."""
    return _state.active is not None and _state.active.is_apart


def note(instance: Any, name: str) -> None:
    """Note that an object of the plan has kept a property."""
    if _state.active is not None:
        _state.active.properties.append((instance, name))


def planned() -> bool:
    """Whether a plan is being made or read: then nothing may be decided by the values of what is learned."""
    return _state.active is not None


def made(plan: Plan, like: Plan | None = None) -> AbstractContextManager[None]:
    """Keep in a plan what the functions of `once_per_batch` find meanwhile, and choose as for an earlier plan."""
    return _meanwhile("active", _Active(plan, True, like))


def apart() -> AbstractContextManager[None]:
    """Keep nothing meanwhile in the plan that is being made, which keeps what comes of it as a whole."""
    return _meanwhile("active", _Active(Plan(), True, is_apart=True))


def read(plan: Plan | None) -> AbstractContextManager[None]:
    """Let the functions of `once_per_batch` answer from a plan meanwhile, if there is one."""
    # Compiled code may stop inside of a null context, and go on after what it cannot trace.
    return nullcontext() if plan is None else _meanwhile("active", _Active(plan, False))


def unplanned() -> AbstractContextManager[None]:
    """Compute meanwhile as without a plan, which has results for the calls of one forward pass alone."""
    return _meanwhile("active", None)


def once(
    name: str,
    find: Callable[[], Any],
    forgets: Callable[[Any], bool] = lambda result: False,
    dtype: torch.dtype | None = None,
) -> Any:
    """The result of a function: kept in the plan that is being made, or read from the plan of this run.

    What the function calls is not kept by itself. A name without a dot is that of a choice, which a plan takes from the
    earlier plan that it is ``like``. If it ``forgets`` by its result, objects of the plan lose the properties that were
    found for it, so that plans of different batches have the same tensors.

    Raises:
        TypeError: If the result has a ``dtype``, and the plan has it in another one alone.
    """
    active = _state.active
    if active is None:
        return find()
    name, function = name if dtype is None else f"{name} {dtype}", name
    if not active.makes:
        kept = active.plan.kept
        others = [] if name in kept else [key for key in kept if key.startswith(f"{function} ")]
        if others:
            raise TypeError(
                f"the plan was made for {others[0].rpartition(' ')[2]}, but the module now has {dtype}: make a new "
                "one by module.plan(…)"
            )
        results, number = kept.get(name, []), active.taken.get(name, 0)
        active.taken[name] = number + 1
        return results[number] if number < len(results) else find()
    results = active.plan.kept.setdefault(name, [])
    earlier = active.like.kept.get(name, []) if active.like is not None and "." not in name else []
    if len(results) < len(earlier):
        results.append(earlier[len(results)])
        return results[-1]
    with apart():
        results.append(find())
        noted = _state.active.properties  # type: ignore[union-attr]
    if forgets(results[-1]):
        for instance, key in noted:
            vars(instance).pop(key, None)
    return results[-1]


class _Writer:
    """Lists the tensors of a plan once each, and describes the rest."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.seen: dict[int, tuple[int, Any]] = {}
        self.objects = 0

    def write(self, value: Any) -> Spec:
        if isinstance(value, Tensor):
            number, _ = self.seen.setdefault(id(value), (len(self.leaves), value))
            self.leaves += [value] * (number == len(self.leaves))
            return ["tensor", number]
        if isinstance(value, bool | float | str | None):
            return ["value", value]
        if isinstance(value, np.ndarray):  # numbers for the host, which a run does not read
            return ["value", None]
        if isinstance(value, torch.Size):  # these numbers are the same in all batches
            return ["shape", list(value)]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if isinstance(value, torch.device):
            return ["device", str(value)]
        if isinstance(value, int | torch.SymInt):  # a number may differ between batches, and a size may be symbolic
            self.leaves.append(torch.empty(value, 0, device="cpu"))
            return ["size", len(self.leaves) - 1]
        if id(value) in self.seen:
            return ["again", self.seen[id(value)][0]]
        self.seen[id(value)] = (self.objects, value)
        self.objects += 1
        number = self.objects - 1
        if isinstance(value, dict):
            return ["dict", number, [[self.write(key), self.write(entry)] for key, entry in value.items()]]
        if isinstance(value, list | tuple):
            return [_name(type(value)), number, [self.write(entry) for entry in value]]
        hidden = getattr(value, "of_host", ())
        entries = {key: entry for key, entry in sorted(vars(value).items()) if key not in hidden}
        return ["object", number, _name(type(value)), [[key, self.write(entry)] for key, entry in entries.items()]]


class _Reader:
    """Makes what `_Writer` has written."""

    def __init__(self, leaves: list[Any], device: torch.device | None) -> None:
        self.leaves, self.device = leaves, device
        self.objects: dict[int, Any] = {}

    def read(self, spec: Spec) -> Any:
        kind, value, *rest = spec
        if kind == "tensor":
            return self.leaves[value]
        if kind == "size":
            return self.leaves[value].size(0)
        if kind == "value":
            return value
        if kind == "shape":
            return torch.Size(value)
        if kind == "dtype":
            return getattr(torch, value)
        if kind == "device":
            return torch.device(value) if self.device is None else self.device
        if kind == "again":
            return self.objects[value]
        if kind == "dict":
            found: Any = {}
            self.objects[value] = found
            found.update((self.read(key), self.read(entry)) for key, entry in rest[0])
        elif kind == "object":
            cls = _class(rest[0])
            found = self.objects[value] = cls.__new__(cls)
            found.__dict__.update((key, self.read(entry)) for key, entry in rest[1])
        else:
            cls, entries = _class(kind), [self.read(entry) for entry in rest[0]]
            found = cls(*entries) if hasattr(cls, "_fields") else cls(entries)
            self.objects[value] = found
        return found


def _flatten(plan: Plan) -> tuple[list[Tensor], Spec]:
    own = vars(plan)
    if "_leaves" in own:
        return own["_leaves"], own["_spec"]
    writer = _Writer()
    spec = writer.write({key: own[key] for key in ("given", "kept", "parts")})
    return writer.leaves, spec


def _flatten_with_keys(plan: Plan) -> tuple[list[tuple[SequenceKey[Tensor], Tensor]], Spec]:
    leaves, spec = _flatten(plan)
    return [(SequenceKey(number), leaf) for number, leaf in enumerate(leaves)], spec


def _unflatten(leaves: Any, spec: Spec) -> Plan:
    """A plan that is made from its leaves when it is first read: torch also puts other things in their place."""
    plan = Plan.__new__(Plan)
    vars(plan).update(_leaves=list(leaves), _spec=spec)
    return plan


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if module not in sys.modules:  # what a file names is not imported
        raise ValueError(f"the plan holds a {name}: import {module} first")
    found: Any = sys.modules[module]
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


register_pytree_node(
    Plan,
    _flatten,
    _unflatten,
    serialized_type_name="pyg_topomask.Plan",
    flatten_with_keys_fn=_flatten_with_keys,  # type: ignore[arg-type]
    to_dumpable_context=json.dumps,
    from_dumpable_context=json.loads,
)
