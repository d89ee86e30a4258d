"""Models as programs of ``torch.export``."""

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.gps_network import GPSNetwork
from pyg_topomask.nn.graph_attributes import requirements_of, with_attributes


class _Planned(Module):
    """A model whose plan is a list of tensors, so that programs need no class of this package where they run."""

    def __init__(self, model: GPSNetwork, spec: Any) -> None:
        super().__init__()
        self.model, self.spec = model, spec

    def forward(self, graph: dict[str, Tensor], plan: list[Tensor]) -> Any:
        read = tree_unflatten(plan, self.spec)
        if isinstance(self.model, GPSModel):
            return self.model(**graph, plan=read)
        return self.model(with_attributes(Data(), **graph, batch=read.batch, ptr=read.given["ptr"]), plan=read)


def export_model(model: GPSNetwork, graph: Data) -> ExportedProgram:
    """The program that a `GPSModel` or `GPSNetwork` computes, for ``torch.export.save`` and AOTInductor.

    It is ``torch.export.export`` of the model with a plan. The numbers of nodes, edges, walks and graphs may be others
    when the program runs.

    Args:
        model: The model, in evaluation mode.
        graph: A `Data` or a `Batch` with what the model reads. A batch of several graphs of different sizes is best:
            sizes 0 and 1 become constants.

    Raises:
        TypeError: If the model is neither.
        ValueError: If the graph lacks what the model reads.
    """
    if not isinstance(model, GPSNetwork):
        raise TypeError(
            f"export_model takes a GPSModel or GPSNetwork (got {type(model).__name__}): for other modules, call "
            "torch.export.export"
        )
    inputs = graph_inputs(graph, model)
    with plans.plain():
        planned = _Planned(model, tree_flatten(model.plan(graph))[1])
    sizes = torch.utils._pytree.tree_map(lambda x: dict.fromkeys(range(x.dim()), Dim.AUTO), inputs)
    with torch.no_grad(), plans.plain():
        return torch.export.export(planned, (), inputs, dynamic_shapes=sizes, strict=False)


def graph_inputs(graph: Data, model: GPSNetwork) -> dict[str, Any]:
    """The inputs of a model's program, ``program.module()(**graph_inputs(graph, model))``: ``graph``, the attributes
    that encoders, convolutions and head read, and ``plan``, the tensors of the plan.

    Args:
        graph: A `Data` or a `Batch` with what the model reads.
        model: The model.

    Raises:
        ValueError: If the graph lacks an attribute.
    """
    encoders = (model.node_encoder, model.edge_encoder, model.pe_encoder, model.bias_encoder)
    names = ["edge_index", *requirements_of(*encoders)]
    if isinstance(model, GPSModel):
        names += ["x"] + ["edge_attr"] * (model.edge_encoder is not None)
    optional = [name for name in ("edge_weight", "edge_type") if model.layers.takes(name)] + ["edge_label_index"]
    names = list(dict.fromkeys(names + [name for name in optional if graph.get(name) is not None]))
    missing = [name for name in names if graph.get(name) is None]
    if missing:
        raise ValueError(f"the model needs {', '.join(map(repr, missing))} on the graph")
    with plans.plain():
        return {"graph": {name: graph[name] for name in names}, "plan": tree_flatten(model.plan(graph))[0]}
