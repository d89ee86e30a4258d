"""The part of a data set that trials train on, and the sizes of all batches of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import to_scipy_sparse_matrix

from pyg_topomask.loader import EpochSampler
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.features import width
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.task import Task

MOST_BATCHES = 24
"""Training batches in a sample; a trial uses as many as its time allows."""

_EPOCHS = 3  # number of epochs whose batches are searched for a large one


class Size(NamedTuple):
    """Number of nodes of a batch, and number of pairs of nodes that share a graph."""

    nodes: int
    pairs: int

    @classmethod
    def of(cls, counts: Iterable[int]) -> Size:
        """The size of a batch of graphs with these numbers of nodes."""
        counts = list(counts)
        return cls(sum(counts), sum(count**2 for count in counts))


@dataclass(frozen=True)
class Epoch:
    """What one epoch of a run processes.

    Args:
        train: Size of each training batch; empty if the loader serves parts of one graph.
        val: Size of each validation batch.
        num_nodes: Nodes of all graphs.
        evaluated_nodes: Nodes of the validation and test graphs.
    """

    train: list[Size]
    val: list[Size]
    num_nodes: int
    evaluated_nodes: int


@dataclass(frozen=True)
class Sample:
    """Graphs for trials, with the features that the model takes.

    Args:
        train: The graphs of training batches, drawn as the loader draws them. The last batch is the largest of three
            epochs. A single graph is one batch.
        val: The graphs of validation batches.
        masks: Training, validation and test nodes of a single graph, else None.
        task: What is predicted.
        in_channels: Width of the node features.
        edge_channels: Width of the edge features; None without edge features.
        resample: As in :class:`~pyg_topomask.run.data.formats.LoadedDataset`.
    """

    train: list[list[Data]]
    val: list[list[Data]]
    masks: tuple[Tensor, Tensor, Tensor] | None
    task: Task
    in_channels: int
    edge_channels: int | None
    resample: Callable[[int], BaseTransform] | None = None

    def size(self, number: int) -> Size:
        """Size of a training batch."""
        return Size.of(int(graph.num_nodes or 0) for graph in self.train[number])

    def shrunk(self, share: float) -> Sample:
        """A single batch with this share of the graphs, or of the nodes of a single graph."""
        if share >= 1:
            return replace(self, train=self.train[:1], val=self.val[:1])
        if self.masks is None:
            batches = [graphs[: max(2, round(share * len(graphs)))] for graphs in (self.train[0], self.val[0])]
            return replace(self, train=batches[:1], val=batches[1:])
        (graph,) = self.train[0]
        count = max(2, round(share * int(graph.num_nodes or 0)))
        adjacency = to_scipy_sparse_matrix(graph.edge_index, num_nodes=graph.num_nodes).tocsr()
        nearby = reverse_cuthill_mckee(adjacency)[:count]  # nodes next to each other, so that edges remain
        part = graph.subgraph(torch.from_numpy(nearby.copy()).long().sort().values)
        every = torch.ones(count, dtype=torch.bool)
        return replace(self, train=[[part]], val=[[part]], masks=(every, every, every))


def draw_sample(
    config: Config, dataset: LoadedDataset, graphs: Sequence[Data], parts: tuple[Any, Any, Any]
) -> tuple[Sample, Epoch]:
    """Choose the batches of trials, and count what an epoch processes.

    Args:
        config: Gives batch size and seed.
        dataset: Gives the task.
        graphs: All graphs, with features.
        parts: Indices of the training, validation and test graphs, or masks of nodes for a single graph.
    """
    sizes = (width(graphs[0].x) or 1, width(graphs[0].edge_attr))
    if dataset.is_one_graph:
        nodes = int(graphs[0].num_nodes or 0)
        whole = [Size.of([nodes])]
        epoch = Epoch(whole if config.train.sampler == "full_batch" else [], whole, nodes, 0)
        return Sample([[graphs[0].clone()]], [[graphs[0].clone()]], parts, dataset.task, *sizes), epoch
    train, val, test = parts
    batch_size, counts = config.train.batch_size, [int(graph.num_nodes or 0) for graph in graphs]
    epochs = [_batches(train, batch_size, config.seed, epoch) for epoch in range(_EPOCHS)]
    largest = max((batch for epoch in epochs for batch in epoch), key=lambda b: Size.of(counts[i] for i in b).pairs)
    drawn = [batch for batch in epochs[0] if batch is not largest and len(batch) == len(epochs[0][0])]
    evaluated = [list(val[start : start + batch_size]) for start in range(0, len(val), batch_size)]
    chosen = [*drawn[: MOST_BATCHES - 1], largest]
    spread = evaluated[:: max(1, len(evaluated) // (MOST_BATCHES // 4))]
    sample = Sample(_copies(graphs, chosen), _copies(graphs, spread), None, dataset.task, *sizes, dataset.resample)
    sizes_of = [[Size.of(counts[i] for i in batch) for batch in batches] for batches in (epochs[0], evaluated)]
    return sample, Epoch(sizes_of[0], sizes_of[1], sum(counts), sum(counts[i] for i in (*val, *test)))


def _batches(items: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as the training loader draws them."""
    sampler = EpochSampler(len(items), seed)
    sampler.set_epoch(epoch)
    order = iter(items[i] for i in sampler.order().tolist())
    return list(iter(lambda: list(islice(order, batch_size)), []))


def _copies(graphs: Sequence[Data], batches: Sequence[Sequence[int]]) -> list[list[Data]]:
    """Copies that share no storage with the data set, which would be sent to another process as a whole."""
    return [[graphs[i].clone() for i in batch] for batch in batches]
