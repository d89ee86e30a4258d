"""What the transforms of this package have in common: text that names their settings, and many graphs in one call."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose


class GraphTransform(BaseTransform):
    """Base of the transforms that put attributes on a graph.

    A subclass says in `additions` what it puts on each of many graphs, and keeps its settings as attributes of the
    names of its arguments. Called on one graph it returns a copy with the additions; called on a list of graphs or a
    data set, such as a whole ``InMemoryDataset``, a list of such copies, at a fraction of the time for each graph.
    """

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        """Attributes that are put on each graph; :obj:`None` removes one."""
        raise NotImplementedError

    def apply(self, graphs: Sequence[Data]) -> list[Data]:
        """Copies of the graphs, sharing their tensors, with the additions; computed together."""
        return [_attach(copy.copy(graph), added) for graph, added in zip(graphs, self.additions(graphs))]

    def forward(self, data: Any) -> Any:
        if isinstance(data, (Sequence, Dataset)):
            return self.apply([data[place] for place in range(len(data))])  # type: ignore[arg-type]
        return _attach(data, self.additions([data])[0])

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({settings})"


def apply_all(transforms: Iterable[BaseTransform], graphs: Sequence[Data]) -> list[Data]:
    """Graphs with transforms applied one after the other: those of this package to all graphs at once."""
    graphs = list(graphs)
    for transform in transforms:
        if isinstance(transform, GraphTransform):
            graphs = transform.apply(graphs)
        elif isinstance(transform, Compose):
            graphs = apply_all(transform.transforms, graphs)
        else:
            graphs = [transform(graph) for graph in graphs]
    return graphs


def _attach(data: Data, added: dict[str, Any]) -> Data:
    for key, value in added.items():
        if value is not None:
            data[key] = value
        elif key in data:
            del data[key]
    return data
