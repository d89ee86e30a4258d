"""Models as programs of ``torch.export``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch_geometric.data import Batch, Data

from pyg_topomask.nn.gps_model import GPSModel

_OF_EVERY_GRAPH = ("edge_index", "edge_weight", "edge_attr", "ptr")


def export_model(model: GPSModel, graph: Data) -> ExportedProgram:
    """The program that a model computes, for ``torch.export.save`` and AOTInductor.

    The numbers of nodes, edges, walks and graphs may be others when the program runs.

    Args:
        model: The model, in evaluation mode.
        graph: A `Data` or a `Batch`, with node features ``x`` and what the model requires. A batch of several graphs of
            different sizes is best: sizes 0 and 1 become constants.

    Raises:
        TypeError: If the model is no `GPSModel`.
        RuntimeError: If the model is in training mode, or a part of it cannot be exported.
        ValueError: If the graph lacks what the model requires.
    """
    if not isinstance(model, GPSModel):
        raise TypeError(
            f"export_model takes a GPSModel (got {type(model).__name__}): for other modules, call torch.export.export"
        )
    inputs = graph_inputs(graph, model)
    sizes = torch.utils._pytree.tree_map(lambda x: dict.fromkeys(range(x.dim()), Dim.AUTO), inputs)
    with torch.no_grad():
        return torch.export.export(model, (), inputs, dynamic_shapes=sizes, strict=False)


def graph_inputs(graph: Data, model: GPSModel | ExportedProgram) -> dict[str, Any]:
    """The inputs of a model or of its program: ``x``, ``edge_index``, ``batch``, perhaps ``edge_attr``, and ``graph``.

    All are tensors, or a dictionary of tensors for ``graph``: ``program.module()(**graph_inputs(graph, program))``.

    Args:
        graph: A `Data` or a `Batch`, with node features ``x`` and what the model requires.
        model: The model, or a program of `export_model`, which knows the names of its inputs.

    Raises:
        ValueError: If the graph lacks an input.
    """
    if not isinstance(graph, Batch):
        graph = Batch.from_data_list([graph])
    if isinstance(model, ExportedProgram):
        names, own = list(model.example_inputs[1]), list(model.example_inputs[1]["graph"])
    else:
        names = ["x", "edge_index", "batch"] + ["edge_attr"] * (model.edge_encoder is not None)
        own = [*model.requires, *(name for name in _OF_EVERY_GRAPH if name in graph)]
    missing = [name for name in dict.fromkeys([*names, *own]) if name != "graph" and graph.get(name) is None]
    if missing:
        raise ValueError(f"the model needs {', '.join(map(repr, missing))} on the graph")
    found = {name: graph[name] for name in names if name != "graph"}
    return found | {"graph": {name: graph[name] for name in own if isinstance(graph[name], Tensor)}}
