"""What the plans of attentions, masks and models have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn.graph_attributes import OF_TOKENS
from pyg_topomask.ops.segment import check_batch, segments

_OF_GRAPHS = ("edge_index", "edge_weight", "edge_type", "edge_attr", "ptr", *OF_TOKENS)
"""Attributes of every graph that attentions and masks may read."""


def of_graph(graph: Data | None, batch: Tensor, requires: Iterable[str], moving: Iterable[str] = ()) -> dict[str, Any]:
    """What a plan keeps of a graph: the attributes that may be read, batch vector and ``ptr``.

    Raises:
        ValueError: If an attribute other than ``moving`` ones requires a gradient.
    """
    check_batch(batch, batch.numel())
    names = [name for name in dict.fromkeys([*requires, *_OF_GRAPHS]) if graph is not None]
    given = {name: graph[name] for name in names if graph.get(name) is not None}  # type: ignore[union-attr, index]
    for name, value in given.items():
        if isinstance(value, Tensor) and value.requires_grad and name not in moving:
            raise ValueError(f"{name!r} requires a gradient, and a plan is constant: call the module without a plan")
    ptr = given.get("ptr")
    fits = ptr is not None and int(ptr[-1]) == batch.numel()
    return {**given, "batch": batch, "ptr": ptr if fits else segments(batch).offsets.long()}


def kind_of(module: Module) -> Any:
    """What decides about the plan of a module: its classes and settings; modules of one kind share their plans."""
    simple = (bool, int, float, str, tuple, type(None))
    return tuple(
        (name, type(part), *((key, repr(value)) for key, value in vars(part).items() if isinstance(value, simple)))
        for name, part in module.named_modules()
    )


@contextmanager
def as_learned(module: Module) -> Iterator[None]:
    """Let all parameters of a module require gradients: a plan must not depend on those that are frozen now."""
    frozen = [p for p in module.parameters() if not p.requires_grad]
    with torch.enable_grad():
        for p in frozen:
            p.requires_grad_()
        try:
            yield
        finally:
            for p in frozen:
                p.requires_grad_(False)
