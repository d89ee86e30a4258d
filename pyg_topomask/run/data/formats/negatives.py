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
    """Base: the draw is a function of (seed, epoch, graph) alone; loader workers see the epoch in shared memory."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Use the draws of this epoch from now on."""
        self._epoch.fill_(epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()

    def _generator(self, data: Data) -> torch.Generator:
        index = data.edge_label_index
        content = int((index[0] * 31 + index[1] * 17 + 1).sum()) + 1_009 * int(data.num_nodes)
        key = (self.seed * 1_000_003 + int(self._epoch)) * 1_000_003 + content
        return torch.Generator().manual_seed(key % 2**63)


class ResampleNegatives(_Redrawn):
    """Draws two negatives ``(i, k)`` for each positive ``(i, j)`` of ``edge_label_index``, as GraphGPS for contacts.

    k is uniform over the nodes of the graph, including i. A pair that is positive or was drawn before is redrawn up to
    ten times and then left out, because a small graph may have too few negatives.

    Args:
        seed: Seed of the draws, which also depend on the epoch and the graph.
    """

    def forward(self, data: Data) -> Data:
        generator, number = self._generator(data), int(data.num_nodes)
        positive = data.edge_label_index[:, data.edge_label.view(-1) == 1]
        taken = (positive[0] * number + positive[1]).unique()
        start = positive[0].repeat_interleave(NEGATIVES_PER_POSITIVE)
        key = start * number + torch.randint(number, (start.numel(),), generator=generator)
        for _ in range(TRIES):
            again = torch.isin(key, taken) | _is_repeated(key)
            if not bool(again.any()):
                break
            drawn = torch.randint(number, (int(again.sum()),), generator=generator)
            key = key.masked_scatter(again, start[again] * number + drawn)
        key = key[~(torch.isin(key, taken) | _is_repeated(key))]
        negative = torch.stack([key // number, key % number])
        return _with_labels(data, positive, negative)


class ResampleNonEdges(_Redrawn):
    """Draws as many pairs without an edge as there are positives, from the whole graph (OGB's link data sets).

    Pairs have two different nodes, and each has the same probability. If the graph has nearly all edges, there may be
    fewer. PyG's ``negative_sampling`` draws from Python's global generator, so it would not repeat.

    Args:
        seed: Seed of the draws, which also depend on the epoch and the graph.
    """

    def forward(self, data: Data) -> Data:
        generator, number = self._generator(data), int(data.num_nodes)
        positive = data.edge_label_index[:, data.edge_label.view(-1) == 1]
        taken = data.edge_index[0] * number + data.edge_index[1]
        key = taken.new_empty(0)
        for _ in range(TRIES):
            missing = positive.size(1) - key.numel()
            if missing == 0:
                break
            drawn = torch.randint(number**2, (2 * missing,), generator=generator)
            free = (drawn // number != drawn % number) & ~torch.isin(drawn, taken)
            key = torch.cat([key, drawn[free]])
            key = key[~_is_repeated(key)][: positive.size(1)]
        return _with_labels(data, positive, torch.stack([key // number, key % number]))


def _is_repeated(key: Tensor) -> Tensor:
    """Whether an equal entry comes before."""
    order = key.argsort(stable=True)
    repeated = torch.zeros_like(key, dtype=torch.bool)
    repeated[order[1:]] = key[order[1:]] == key[order[:-1]]
    return repeated


def _with_labels(data: Data, positive: Tensor, negative: Tensor) -> Data:
    data.edge_label_index = torch.cat([positive, negative], dim=1)
    label = data.edge_label.new_ones(positive.size(1)), data.edge_label.new_zeros(negative.size(1))
    data.edge_label = torch.cat(label)
    return data
