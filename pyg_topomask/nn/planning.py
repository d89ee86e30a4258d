"""What the plans of attentions, masks and models have in common."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch_geometric.data import Data

from pyg_topomask.nn.graph_attributes import OF_TOKENS, with_attributes
from pyg_topomask.ops.segment import check_batch, segments
from pyg_topomask.transforms.graph_input import with_edge_index

_OF_GRAPHS = ("edge_index", "edge_weight", "edge_type", "edge_attr", "ptr", "real_graphs", *OF_TOKENS)
"""Attributes of every graph that attentions and masks may read."""


def of_graph(graph: Data | None, batch: Tensor, requires: Iterable[str], moving: Iterable[str] = ()) -> dict[str, Any]:
    """What a plan keeps of a graph: the attributes that may be read, batch vector and ``ptr``.

    ``moving`` attributes that require a gradient are not kept; a run reads them from ``graph=``.

    Raises:
        ValueError: If an attribute other than ``moving`` ones requires a gradient.
    """
    check_batch(batch, batch.numel())
    names = dict.fromkeys([*requires, *_OF_GRAPHS])
    given = {} if graph is None else {name: graph[name] for name in names if graph.get(name) is not None}
    for name in [name for name, value in given.items() if isinstance(value, Tensor) and value.requires_grad]:
        if name not in moving:
            raise ValueError(f"{name!r} requires a gradient, and a plan is constant: call the module without a plan")
        del given[name]
    ptr = given.get("ptr")
    fits = ptr is not None and int(ptr[-1]) == batch.numel()
    return {**given, "batch": batch, "ptr": ptr if fits else segments(batch).offsets.long()}


def for_plan(graph: Any) -> Any:
    """The graph with a plain ``edge_index``, and copies of tensors of inference mode, which autograd does not save."""
    graph = with_edge_index(graph)
    made = {name: x.clone() for name, x in graph.to_dict().items() if isinstance(x, Tensor) and x.is_inference()}
    return with_attributes(graph, **made) if made else graph


def kind_of(module: Module) -> Any:
    """What decides about the plan of a module: its classes, settings and buffers. Modules of one kind share plans."""
    simple = (bool, int, float, str, tuple, list, type(None))
    found = []
    for name, part in module.named_modules():
        settings = [(key, repr(value)) for key, value in vars(part).items() if isinstance(value, simple)]
        buffers = [(key, tuple(x.flatten().tolist())) for key, x in part.named_buffers(recurse=False)]
        found.append((name, type(part), *settings, *buffers))
    return tuple(found)


@contextmanager
def as_learned(module: Module, device: torch.device) -> Iterator[None]:
    """Let a module have parameters that require gradients, and lie with its buffers on a device.

    A plan must not depend on parameters that are frozen now, nor on their values. So those on another device are not
    read, which a loader's worker could not do.
    """
    tables: list[Any] = [x for part in module.modules() for x in (part._parameters, part._buffers)]
    before = [(table, dict(table)) for table in tables]
    with torch.inference_mode(False), torch.enable_grad():
        for table, own in before:
            for name, x in own.items():
                is_learned = isinstance(x, Parameter)
                if x is not None and (x.device != device or (is_learned and not x.requires_grad)):
                    moved = x.detach() if x.device == device else torch.zeros(x.shape, dtype=x.dtype, device=device)
                    table[name] = Parameter(moved) if is_learned else x.to(device)
        try:
            yield
        finally:
            for table, own in before:
                table.update(own)
