"""What the documentation, the benchmarks and the tests say of a mask or an attention and read from its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pyg_topomask.checks import check_choice

Reach = Literal["far", "hops", "order"]
Graphs = Literal["any", "grids", "sequences"]


@dataclass(frozen=True)
class Card:
    """A mask or an attention in a few words. ``docs/masks.md`` and ``docs/methods/index.md`` print every field.

    Args:
        formula: The entry M_ij of a mask, or what a node attends to.
        learns: What is learned, per head.
        cost: Work of a product for one column, or what the time of an attention grows with.
        when: When to use it.
        reach: ``"far"``: a node may see all nodes of its graph; ``"hops"``: nodes within a number of hops;
            ``"order"``: what it sees depends on the order of the nodes, so that relabelling them changes the result.
        graphs: Kind of graphs that it is for: ``"any"``, ``"grids"`` or ``"sequences"``.
        time: Exponent of the number of nodes in the time; a logarithm counts as 0.1.
        memory: The same of memory.
    """

    formula: str
    learns: str
    cost: str
    when: str
    reach: Reach
    graphs: Graphs = "any"
    time: float = 1.0
    memory: float = 1.0

    def __post_init__(self) -> None:
        check_choice("reach", self.reach, get_args(Reach))
        check_choice("graphs", self.graphs, get_args(Graphs))
