"""``topomask show path``: the engines of a layer's attention on a batch, and why each is taken or not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.table import Table
from torch_geometric.data import Batch

from pyg_topomask.ops.attention import plan
from pyg_topomask.run.commands.show import load_sample
from pyg_topomask.run.errors import RunError


def path_table(
    config: str | Path,
    graph: int = 0,
    layer: int = 0,
    checkpoint: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Table:
    """Estimated time of each engine of masked attention, or the reason why it cannot serve, for one layer.

    Args:
        config: YAML file.
        graph: Number of the first graph of the batch, which has ``train.batch_size`` graphs if there are so many.
        layer: Number of the layer, from 0.
        checkpoint, overrides: As in `picture`.

    Raises:
        RunError: If a setting is wrong, or the layer has no masked attention; the message says what to change.
    """
    sample = load_sample(config, graph, layer, 0, checkpoint, overrides, whole_batch=True)
    batch = Batch.from_data_list(sample.graphs)
    problems: list[plan.Problem] = []
    with ExitStack() as stack:
        chosen_layer = sample.model.layers[layer]
        chosen_layer.register_forward_pre_hook(lambda *_: stack.enter_context(plan.watched(problems.append)))
        chosen_layer.register_forward_hook(lambda *_: stack.close())
        with torch.no_grad():
            sample.model(batch)
    with torch.no_grad():
        if not problems:
            raise RunError(
                f"layer {layer} has no attention with a choice of engines, such as gt.layer_type=GCN+GRF "
                f"(got {sample.config.gt.layer_type})"
            )
        title = f"{sample.name}, {len(sample.graphs)} graphs, layer {layer}, {sample.origin}"
        table = Table("engine", "path", "estimated ms", "", title=title)
        for problem in problems:
            chosen = plan.plan(problem)
            for name, reason in plan.explain(problem).items():
                cost = "" if isinstance(reason, str) else f"{reason / 1e6:.2f}"
                why = reason if isinstance(reason, str) else "taken by path=auto" if name == chosen else ""
                table.add_row(name, plan.ENGINES[name].path, cost, why)
            table.add_section()
    return table
