"""Models as programs of ``torch.export``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.plan import Plan


class _Planned(Module):
    """A model whose plan is a list of tensors, so that programs need no class of this package where they run."""

    def __init__(self, model: GPSModel, spec: Any) -> None:
        super().__init__()
        self.model, self.spec = model, spec

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        plan: list[Tensor],
        edge_attr: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Any:
        given = {} if edge_weight is None else {"edge_weight": edge_weight}
        return self.model(x, edge_index, edge_attr=edge_attr, plan=tree_unflatten(plan, self.spec), **given)


def export_model(model: GPSModel, graph: Data) -> ExportedProgram:
    """The program that a model computes, for ``torch.export.save`` and AOTInductor.

    It is ``torch.export.export`` of ``model(x, edge_index, plan=plan)``. The numbers of nodes, edges, walks and graphs
    may be others when the program runs.

    Args:
        model: The model, in evaluation mode.
        graph: A `Data` or a `Batch`, with node features ``x`` and what the model requires. A batch of several graphs of
            different sizes is best: sizes 0 and 1 become constants.

    Raises:
        TypeError: If the model is no `GPSModel`.
        ValueError: If the graph lacks what the model requires.
    """
    if not isinstance(model, GPSModel):
        raise TypeError(
            f"export_model takes a GPSModel (got {type(model).__name__}): for other modules, call torch.export.export"
        )
    inputs = graph_inputs(graph, model)
    planned = _Planned(model, tree_flatten(_plan(model, graph))[1])
    sizes = torch.utils._pytree.tree_map(lambda x: dict.fromkeys(range(x.dim()), Dim.AUTO), inputs)
    with torch.no_grad():
        return torch.export.export(planned, (), inputs, dynamic_shapes=sizes, strict=False)


def graph_inputs(graph: Data, model: GPSModel) -> dict[str, Any]:
    """The inputs of a model's program, ``program.module()(**graph_inputs(graph, model))``: ``x``, ``edge_index``,
    perhaps ``edge_attr`` and ``edge_weight``, and the tensors of the plan.

    Args:
        graph: A `Data` or a `Batch`, with node features ``x`` and what the model requires.
        model: The model.

    Raises:
        ValueError: If the graph lacks an input.
    """
    names = ["x", "edge_index"] + ["edge_attr"] * (model.edge_encoder is not None)
    names += ["edge_weight"] if graph.get("edge_weight") is not None and model.layers.takes("edge_weight") else []
    missing = [name for name in names if graph.get(name) is None]
    if missing:
        raise ValueError(f"the model needs {', '.join(map(repr, missing))} on the graph")
    return {name: graph[name] for name in names} | {"plan": tree_flatten(_plan(model, graph))[0]}


def _plan(model: GPSModel, graph: Data) -> Plan:
    with plans.plain():
        return model.plan(graph)
