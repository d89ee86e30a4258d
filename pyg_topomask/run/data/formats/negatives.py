"""Negative edges of link prediction, redrawn in each epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

NEGATIVES_PER_POSITIVE = 2
TRIES = 10


class _Redrawn(BaseTransform):
    """Base: the draw is a function of (seed, epoch, graph) alone; loader workers see the epoch in shared memory.

    Args:
        seed: Seed of the draws, which also depend on the epoch and the graph.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Use the draws of this epoch from now on."""
        self._epoch.fill_(epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()

    def forward(self, data: Data) -> Data:
        index, number = data.edge_label_index, int(data.num_nodes)
        content = int((index[0] * 31 + index[1] * 17 + 1).sum()) + 1_009 * number
        key = (self.seed * 1_000_003 + int(self._epoch)) * 1_000_003 + content
        positive = index[:, data.edge_label.view(-1) == 1]
        drawn = self.draw(data, positive, number, torch.Generator().manual_seed(key % 2**63))
        data.edge_label_index = torch.cat([positive, torch.stack([drawn // number, drawn % number])], dim=1)
        data.edge_label = (torch.arange(data.edge_label_index.size(1)) < positive.size(1)).to(data.edge_label.dtype)
        return data

    def draw(self, data: Data, positive: Tensor, number: int, generator: torch.Generator) -> Tensor:
        """Negatives ``(i, j)`` of a graph with ``number`` nodes, as ``i * number + j``."""
        raise NotImplementedError


class ResampleNegatives(_Redrawn):
    """Draws two negatives ``(i, k)`` for each positive ``(i, j)`` of ``edge_label_index``, as GraphGPS for contacts.

    k is uniform over the nodes of the graph, including i. A pair that is positive or was drawn before is redrawn up to
    ten times and then left out, because a small graph may have too few negatives.
    """

    def draw(self, data: Data, positive: Tensor, number: int, generator: torch.Generator) -> Tensor:
        taken = positive[0] * number + positive[1]
        start = positive[0].repeat_interleave(NEGATIVES_PER_POSITIVE)
        key = start * number + torch.randint(number, (start.numel(),), generator=generator)
        for _ in range(TRIES):
            again = torch.isin(key, taken) | _is_repeated(key)
            drawn = torch.randint(number, (int(again.sum()),), generator=generator)
            key = key.masked_scatter(again, start[again] * number + drawn)
        return key[~(torch.isin(key, taken) | _is_repeated(key))]


class ResampleNonEdges(_Redrawn):
    """Draws as many pairs without an edge as there are positives, from the whole graph (OGB's link data sets).

    Pairs have two different nodes, and each has the same probability. If the graph has nearly all edges, there may be
    fewer. PyG's ``negative_sampling`` draws from Python's global generator, so it would not repeat.
    """

    def draw(self, data: Data, positive: Tensor, number: int, generator: torch.Generator) -> Tensor:
        taken = data.edge_index[0] * number + data.edge_index[1]
        key = taken.new_empty(0)
        for _ in range(TRIES):
            missing = positive.size(1) - key.numel()
            drawn = torch.randint(number**2, (2 * missing,), generator=generator)
            free = (drawn // number != drawn % number) & ~torch.isin(drawn, taken)
            key = torch.cat([key, drawn[free]])
            key = key[~_is_repeated(key)][: positive.size(1)]
        return key


def _is_repeated(key: Tensor) -> Tensor:
    """Whether an equal entry comes before."""
    order = key.argsort(stable=True)
    repeated = torch.zeros_like(key, dtype=torch.bool)
    repeated[order[1:]] = key[order[1:]] == key[order[:-1]]
    return repeated
