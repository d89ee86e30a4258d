"""The part of a data set that trials train on, and the sizes of all batches of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.task import Task

MOST_BATCHES = 24
"""Training batches in a sample; a trial uses as many as its time allows."""


class Size(NamedTuple):
    """Number of nodes of a batch, and number of pairs of nodes that share a graph."""

    nodes: int
    pairs: int

    @classmethod
    def of(cls, counts: Iterable[int]) -> Size:
        """The size of a batch of graphs with these numbers of nodes."""
        counts = list(counts)
        return cls(sum(counts), sum(count**2 for count in counts))


def estimate(points: Sequence[tuple[Size, float]], size: Size) -> float:
    """The value at one size, by the model constant + a · nodes + b · pairs with numbers that are not negative.

    They have the least squared error over the points. Two sizes do not determine three numbers, so that the constant is
    0. From one size, values are proportional to nodes or to pairs, whichever changes more.
    """
    known = {one for one, _ in points}
    if len(known) == 1:
        (one,), mean = known, float(np.mean([value for _, value in points]))
        nodes, pairs = size.nodes / one.nodes, size.pairs / one.pairs
        return mean * (max if pairs > 1 else min)(nodes, pairs)
    constant = 1.0 if len(known) > 2 else 0.0
    at = np.array([[constant, *one] for one, _ in points])
    scale = np.maximum(at.max(axis=0), 1e-9)
    factors, _ = nnls(at / scale, np.array([value for _, value in points]))
    return float(np.array([constant, *size]) / scale @ factors)


@dataclass(frozen=True)
class Epoch:
    """What one epoch of a run processes.

    Args:
        train: Size of each training batch.
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
        train: The graphs of training batches; the last one is the largest batch of an epoch. A single graph is a batch.
        val: The graphs of a validation batch.
        masks: Training, validation and test nodes of a single graph, else None.
        task: What is predicted.
        resample: As in :class:`~pyg_topomask.run.data.formats.LoadedDataset`.
    """

    train: list[list[Data]]
    val: list[Data]
    masks: tuple[Tensor, Tensor, Tensor] | None
    task: Task
    resample: Callable[[int], BaseTransform] | None = None

    def size(self, number: int) -> Size:
        """Size of a training batch."""
        return Size.of(int(graph.num_nodes or 0) for graph in self.train[number])


def draw_sample(
    config: Config, dataset: LoadedDataset, graphs: Sequence[Data], parts: tuple[Any, Any, Any]
) -> tuple[Sample, Epoch]:
    """Choose the batches of trials, and list the sizes of all batches.

    Args:
        config: Gives batch size and seed.
        dataset: Gives the task.
        graphs: All graphs, with features.
        parts: Indices of the training, validation and test graphs, or masks of nodes for a single graph.
    """
    counts = [int(graph.num_nodes or 0) for graph in graphs]
    if dataset.is_one_graph:
        whole, graph = [Size.of(counts)], graphs[0].clone()
        return Sample([[graph]], [graph], parts, dataset.task), Epoch(whole, whole, sum(counts), 0)
    train, val, test = (list(part) for part in parts)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed)).tolist()
    batches, evaluated = (
        [items[start : start + config.train.batch_size] for start in range(0, len(items), config.train.batch_size)]
        for items in ([train[i] for i in order], val)
    )
    sizes, sizes_val = ([Size.of(counts[i] for i in batch) for batch in some] for some in (batches, evaluated))
    largest = max(range(len(batches)), key=lambda number: sizes[number].pairs)
    others = [batch for number, batch in enumerate(batches) if number != largest]
    chosen = [*others[: MOST_BATCHES - 1], batches[largest]]
    # Copies share no storage with the data set, which would be sent to another process as a whole.
    copies = [[graphs[i].clone() for i in batch] for batch in [*chosen, evaluated[0]]]
    sample = Sample(copies[:-1], copies[-1], None, dataset.task, dataset.resample)
    return sample, Epoch(sizes, sizes_val, sum(counts), sum(counts[i] for i in (*val, *test)))
