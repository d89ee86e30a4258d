"""``topomask show reach``: how far the mask of a layer sees, before and after training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from torch import Tensor
from torch_geometric.data import Batch

from pyg_topomask.operators import OnesOperator
from pyg_topomask.ops.reach import mean_hops, reach
from pyg_topomask.run.model.sampling import refusing_graphs
from pyg_topomask.viz import plot_reach
from pyg_topomask.viz.drawing import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyg_topomask.run.commands.show import View

_GRAPHS, _NUMBERS = 16, 2**22
"""Number of graphs, and of entries of a mask that are computed for each head."""

_HOPS = {"0": (0, 1), "1": (1, 2), "2": (2, 3), "3–4": (3, 5), "5–8": (5, 9), "9–16": (9, 17), "> 16": (17, 18)}
"""Columns of the table, with their places among the shares."""


def reach_of(view: View) -> dict[str, Tensor]:
    """Share of a row's mass at 0, 1, … 16 hops and beyond, ``[H, 18]``, or ``[1, 18]`` if all heads are equal.

    It is that of attention without a mask, that of the layer's mask before training and, if there is a checkpoint,
    after training.

    Raises:
        NoPictureError: If the layer has no mask; the message says what to change.
    """
    if view.mask() is None:
        raise view.missing("reach", "an attention with a mask", "GRF")
    graph = Batch.from_data_list(view.graphs[:_GRAPHS])
    masks: dict[str, Any] = {"no mask": lambda data: OnesOperator(data.batch), "untrained": view.mask()}
    if view.untrained is not None:
        masks |= {"untrained": replace(view, model=view.untrained).mask(), "trained": view.mask()}
    with refusing_graphs(view.config):
        rows = max(1, min(256, _NUMBERS // int(graph.num_nodes or 1)))
        found = {name: reach(mask, graph, 16, rows).view(-1, 18) for name, mask in masks.items()}
    return {name: by_head[:1] if (by_head == by_head[0]).all() else by_head for name, by_head in found.items()}


def reach_table(view: View) -> Table:
    """Shares of a row's mass by hop, and the mean number of hops, in which more than 16 count as 17."""
    table = Table("mask", "head", *_HOPS, "mean", title=_title(view))
    for name, by_head in reach_of(view).items():
        for head, shares in enumerate(by_head):
            cells = [f"{float(shares[start:stop].sum()):.2f}" for start, stop in _HOPS.values()]
            table.add_row(name, str(head) if len(by_head) > 1 else "all", *cells, f"{float(mean_hops(shares)):.2f}")
        table.add_section()
    return table


def draw_reach(view: View) -> Figure:
    """The same as lines."""
    return plot_reach(reach_of(view), _title(view))


def _title(view: View) -> str:
    name, graphs = literal(view.config.dataset.name), min(len(view.graphs), _GRAPHS)
    return f"{name}, layer {view.layer}: share of a row's mass by hop, mean over {graphs} graphs"
