"""Move all walkers in parallel, step by step."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.csr import CSR
from pyg_topomask.ops.hashing import GOLDEN, LOW_32, below, mix, wrap
from pyg_topomask.ops.walks.settings import WalkSettings
from pyg_topomask.ops.walks.transition import StepTable


class WalkGraph(NamedTuple):
    """A graph, or the disjoint union of several, in the form that walkers need."""

    rowptr: Tensor  # [N + 1], int64
    col: Tensor  # [E'], int64
    factor: Tensor  # [E'], factor of the load on each edge
    steps: StepTable | None  # uniform steps if None
    in_place: bool = False  # whether arrays are on disk, and only visited rows may be read; columns may be int32

    @property
    def num_nodes(self) -> int:
        """Number of nodes ``N``."""
        return self.rowptr.numel() - 1


class Visits(NamedTuple):
    """Positions of walkers after some number of hops, without the walkers that have stopped."""

    walker: Tensor  # [V], ``(t n + w) S + s`` for walker ``w`` of the ``n`` of start ``s`` in table ``t``
    node: Tensor  # [V]
    load: Tensor  # [V]


def walk_graph(csr: CSR, settings: WalkSettings, steps: StepTable | None) -> WalkGraph:
    """The graph of checked edges whose weights are the ``W`` of the load."""
    factor = torch.ones_like(csr.weight)
    if settings.importance:
        inverse = csr.degree[csr.row].double() if steps is None else torch.where(steps.prob > 0, 1 / steps.prob, 0)
        factor = csr.weight * (inverse / (1 - settings.halt_prob)).to(csr.weight.dtype)
    return WalkGraph(csr.pattern.rowptr.long(), csr.col, factor, steps)


def move_walkers(
    graph: WalkGraph, nodes: Tensor, stream: Tensor, num_tables: int, settings: WalkSettings
) -> list[Visits]:
    """Visits after 0, 1, … hops of the walkers of a block of starts.

    Args:
        graph: The graph.
        nodes: Nodes where the walkers start, shape ``[S]``.
        stream: Hash of each start from which its draws are derived, shape ``[S]``.
        num_tables: Number of independent tables of ``num_walks`` walkers each.
        settings: Checked settings.
    """
    num_walks, num_starts = settings.num_walks, nodes.numel()
    walk = torch.arange(num_tables * num_walks, device=nodes.device)
    states = mix(stream + ((walk + 1) * GOLDEN)[:, None]).flatten()
    walker, state = torch.arange(states.numel(), device=nodes.device), states
    node, load = nodes.repeat(walk.numel()), graph.factor.new_ones(states.numel())
    halts_below, gains = settings.halts_below, settings.gains
    visits = [Visits(walker, node, load)]
    for length in range(1, settings.max_length + 1):
        draw = mix(state + wrap(length * GOLDEN))
        degree = graph.rowptr.index_select(0, node + 1) - graph.rowptr.index_select(0, node)
        if halts_below[length - 1] > 0 or bool((degree == 0).any()):
            halting = _halting_draws(draw, walker, states, num_starts, length, settings)
            goes_on = (degree > 0) & (halting >= halts_below[length - 1])
            alive = goes_on.nonzero().squeeze(1)
            walker, state, node, load, draw, degree = (
                column.index_select(0, alive) for column in (walker, state, node, load, draw, degree)
            )
        if graph.steps is not None:
            edge = torch.searchsorted(graph.steps.bound, node * 2**32 + (draw & LOW_32), right=True)
        elif settings.scheme == "repelling":
            group = block_of(walker, num_starts, settings.num_walks, settings.block_size) * graph.num_nodes + node
            group, order = group.sort(stable=True)  # kept so that walkers with the same path stay together
            walker, state, node, load, draw, degree = (
                column.index_select(0, order) for column in (walker, state, node, load, draw, degree)
            )
            edge = graph.rowptr.index_select(0, node) + _distinct(group, draw, degree)
        else:
            edge = graph.rowptr.index_select(0, node) + below(draw, degree)
        node = graph.col.index_select(0, edge).long()
        load = load * graph.factor.index_select(0, edge) * gains[length - 1]
        visits.append(Visits(walker, node, load))
    return visits


def block_of(walker: Tensor, num_starts: int, num_walks: int, block_size: int) -> Tensor:
    """Number of each walker's block: table by table, start by start, in blocks of ``block_size`` walks."""
    walk = walker // num_starts
    row = walk // num_walks * num_starts + walker % num_starts
    return row * -(-num_walks // block_size) + walk % num_walks // block_size


def _halting_draws(
    draw: Tensor, walker: Tensor, states: Tensor, num_starts: int, length: int, settings: WalkSettings
) -> Tensor:
    """By which walkers halt: the high half of their draw; an antithetic pair shares the first one's draw, shifted."""
    if settings.scheme == "antithetic":
        second = walker // num_starts % settings.num_walks % 2
        draw = mix(states.index_select(0, walker - second * num_starts) + wrap(length * GOLDEN))
        draw = draw ^ (second << 63)  # shifted by half of the range
    return (draw >> 32) & LOW_32


def _distinct(group: Tensor, draw: Tensor, degree: Tensor) -> Tensor:
    """Distinct neighbours for walkers that leave a node together, until all neighbours have been taken.

    Walker number ``r`` of a group draws one of the ``degree - r`` remaining neighbours. The order in which neighbours
    are taken is therefore a uniform permutation, and each walker's neighbour is uniformly distributed.

    Args:
        group: Number of each walker's group, sorted, shape ``[V]``; the walkers of a group leave one node together.
        draw: Hash of each walker, shape ``[V]``.
        degree: Number of neighbours of each walker's node, shape ``[V]``, positive.
    """
    at, first = torch.arange(group.numel(), device=group.device), torch.ones_like(group, dtype=torch.bool)
    first[1:] = group[1:] != group[:-1]
    rank = (at - torch.where(first, at, 0).cummax(0).values) % degree
    left = below(draw, degree - rank)  # number among the remaining neighbours
    choice = left.clone()
    for earlier in range(1, int(rank.max()) + 1 if rank.numel() else 0):
        here = (rank >= earlier).nonzero().squeeze(1)
        taken = choice.index_select(0, here)
        choice[here] = taken + (taken >= left.index_select(0, here - earlier))
    return choice
