"""A data set before features, encodings and splits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Parts, Task, classification


@dataclass
class LoadedDataset:
    """A data set as its class returns it, before features, encodings and other splits.

    Args:
        graphs: The graphs.
        task: What is predicted.
        parts: Indices of the training, validation and test graphs if the data set defines them. A single graph has
            masks instead.
        resample: Makes, from a seed, the transform with ``set_epoch`` that is applied each time a training graph is
            served.
    """

    graphs: Sequence[Data]
    task: Task
    parts: Parts | None = None
    resample: Callable[[int], BaseTransform] | None = None

    @property
    def is_one_graph(self) -> bool:
        """Whether the nodes of a single graph are the items that are split."""
        return self.task.level == "node" and self.parts is None and len(self.graphs) == 1

    def __len__(self) -> int:
        return len(self.graphs)


def joined(datasets: Sequence[Sequence[Data]]) -> tuple[Sequence[Data], Parts]:
    """Training, validation and test sets as one sequence, with the indices of each."""
    ends = torch.tensor([0, *(len(part) for part in datasets)]).cumsum(0).tolist()
    train, val, test = (torch.arange(start, end) for start, end in pairwise(ends))
    return ConcatDataset(datasets), (train, val, test)  # type: ignore[arg-type, return-value]


def as_dataset(found: Any, task: Task) -> LoadedDataset:
    """The data set with its own split, if it has one, and the task that its targets show."""
    parts = None
    if isinstance(found, tuple) and len(found) == 3:
        found, parts = joined([[part] if isinstance(part, Data) else part for part in found])
    graphs = [found] if isinstance(found, Data) else found
    first = graphs[0] if hasattr(graphs, "__getitem__") and len(graphs) else None
    if not isinstance(first, Data):
        raise RunError(f"dataset: it must be a Data, or a list of them that is not empty (got {type(found).__name__})")
    shapes = set()
    for number, graph in enumerate(graphs):
        _check(graph, number, task)
        shapes.add(None if graph.x is None else tuple(graph.x.shape[1:]))
    if len(shapes) > 1:
        raise RunError(f"dataset: nodes of all graphs need as many features 'x' (got rows of shape {shapes})")
    if task.kind in ("regression", "multilabel"):
        task = Task(task.level, task.kind, max(1, first[task.target_name].numel() // task.count(first)))
    elif task.level != "edge":
        most = max(int(graph[task.target_name].max()) for graph in graphs)
        task = classification(task.level, max(2, most + 1))
    return LoadedDataset(graphs, task, parts)


def _check(graph: Data, number: int, task: Task) -> None:
    """Refuse a graph whose attributes are not numbers in memory, or whose targets are no classes. Raises RunError."""
    target = graph.get(task.target_name)
    if target is None:
        raise RunError(
            f"dataset.task: graphs need {task.target_name!r}, the targets of each {task.level}; graph {number} has none"
        )
    for name in ("x", "edge_attr", "edge_index", task.target_name):
        value, wanted = graph.get(name), "integers [2, E]" if name == "edge_index" else "a dense tensor of real numbers"
        fits = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if fits and name == "edge_index":
            fits = value.dtype in (torch.int64, torch.int32)
        if value is not None and not (fits and not value.is_quantized and not value.is_complex()):
            got = f"{value.dtype}, {value.layout}, on {value.device}" if isinstance(value, Tensor) else repr(value)[:80]
            raise RunError(f"dataset: {name!r} of graph {number} must be {wanted} (got {got})")
    if task.kind in ("binary", "multiclass") and not (target.numel() and bool(target.isfinite().all())):
        raise RunError(f"dataset: {task.target_name!r} of graph {number} must hold classes 0, 1, … (got none, or NaN)")
