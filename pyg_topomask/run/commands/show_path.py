"""``topomask show path``: the engines of a layer's attention on a batch, and why each is taken or not."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from rich.table import Table
from torch_geometric.data import Batch

from pyg_topomask.ops.attention import plan
from pyg_topomask.run.errors import RunError
from pyg_topomask.viz.drawing import literal

if TYPE_CHECKING:
    from pyg_topomask.run.commands.show import View


def path_table(view: View) -> Table:
    """Estimated time of each engine of masked attention on a batch, or the reason why it cannot serve.

    Raises:
        RunError: If the layer has no masked attention; the message says what to change.
    """
    problems: list[plan.Problem] = []
    with ExitStack() as stack, torch.no_grad():
        layer = view.model.layers[view.layer]
        layer.register_forward_pre_hook(lambda *_: stack.enter_context(plan.watched(problems.append)))
        layer.register_forward_hook(lambda *_: stack.close())
        view.model(Batch.from_data_list(view.graphs))
    if not problems:
        example = f"such as gt.layer_type=GCN+GRF (got {view.config.gt.layer_type})"
        raise RunError(f"layer {view.layer} has no attention with a choice of engines, {example}")
    title = f"{literal(view.config.dataset.name)}, layer {view.layer}: attention on {len(view.graphs)} graphs"
    table = Table("engine", "path", "estimated ms", "reason", title=title)
    for problem in problems:
        with torch.no_grad():
            chosen, reasons = plan.plan(problem), plan.explain(problem)
        for name, reason in reasons.items():
            cost = "" if isinstance(reason, str) else f"{reason / 1e6:.3g}"
            why = reason if isinstance(reason, str) else "taken by path=auto" if name == chosen else ""
            table.add_row(name, plan.ENGINES[name].path, cost, why)
        table.add_section()
    return table
