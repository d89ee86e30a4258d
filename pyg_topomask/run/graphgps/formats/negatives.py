"""Negative edges of link prediction, redrawn in each epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

TRIES = 10


class ResampleNegatives(BaseTransform):
    """Draws negatives ``(i, j)`` of a graph: pairs that are neither taken nor drawn twice.

    With ``starts`` there are so many for each positive ``(i, k)`` of ``edge_label_index``, with its ``i``, as GraphGPS
    has two for contacts; j is uniform over the nodes, including i, and only positives are taken. Without, there are as
    many as positives, uniform over the pairs of two different nodes without an edge (OGB's link data sets). PyG's
    ``negative_sampling`` draws from Python's global generator, so it would not repeat.

    A pair that is not allowed is drawn again, ten times at most, because a small graph may have too few. The draw is a
    function of (seed, epoch, graph) alone; loader workers see the epoch in shared memory.

    Args:
        seed: Seed of the draws, which also depend on the epoch and the graph.
        starts: Negatives for each positive.
    """

    def __init__(self, seed: int = 0, starts: int | None = None) -> None:
        self.seed, self.starts = seed, starts
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
        generator = torch.Generator().manual_seed(key % 2**63)
        positive = index[:, data.edge_label.view(-1) == 1]
        if self.starts is None:
            taken = torch.cat([data.edge_index, torch.arange(number).expand(2, -1)], 1)
            base, size = torch.zeros_like(positive[0]), number**2
        else:
            taken, base, size = positive, number * positive[0].repeat_interleave(self.starts), number
        known = (taken[0] * number + taken[1]).sort().values
        drawn, refused = base, torch.ones_like(base, dtype=torch.bool)
        for _ in range(TRIES):
            new = base + torch.randint(size, base.shape, generator=generator)
            drawn = torch.where(refused, new, drawn)
            refused = _is_refused(drawn, known)
            if not bool(refused.any()):
                break
        drawn = drawn[~refused]
        data.edge_label_index = torch.cat([positive, torch.stack([drawn // number, drawn % number])], dim=1)
        data.edge_label = (torch.arange(data.edge_label_index.size(1)) < positive.size(1)).to(data.edge_label.dtype)
        return data


def _is_refused(key: Tensor, known: Tensor) -> Tensor:
    """Whether an entry is one of the ascending ``known`` ones, or an equal entry comes before."""
    order = key.argsort(stable=True)
    refused = known[torch.searchsorted(known, key).clamp(max=known.numel() - 1)] == key
    refused[order[1:]] |= key[order[1:]] == key[order[:-1]]
    return refused
