"""Base of this package's transforms: a text that shows their settings, and calls on many graphs at once."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeVar, overload

from torch.utils.data import Dataset
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.checks import check_keywords

Graphs = TypeVar("Graphs", bound=Data | InMemoryDataset)


class GraphTransform(BaseTransform):
    """Base of the transforms that add attributes to a graph.

    A subclass names in `adds` the attributes that it may add, so that :func:`that_add` and error messages find it. It
    defines `additions`, which returns the new attributes of many graphs, and stores its settings as attributes with the
    names of its arguments. Called on one graph, the transform returns a copy with the additions.
    Called on a list of graphs or a data set, it returns a list of such copies, in a fraction of the time per graph; for
    an ``InMemoryDataset``, a data set of them, to whose graphs its ``transform`` has been applied.
    """

    adds: ClassVar[tuple[str, ...]]
    """Names of the attributes. ``{name}`` is the argument ``name``, and ``*`` any text."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        make: Any = vars(cls).get("__init__")
        if make is None:
            return

        @wraps(make)
        def checked(self: "GraphTransform", *given: Any, **named: Any) -> None:
            check_keywords(make, type(self).__name__, named)
            make(self, *given, **named)

        cls.__init__ = checked  # type: ignore[method-assign, assignment]

    def additions(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        """Attributes to add to each graph; :obj:`None` removes an attribute."""
        raise NotImplementedError

    def apply(self, graphs: Sequence[Data]) -> list[Data]:
        """Copies of the graphs, which share their tensors, with the additions; computed together."""
        return attached(graphs, self.additions(graphs))

    @overload
    def __call__(self, data: Graphs) -> Graphs: ...

    @overload
    def __call__(self, data: Sequence[Data] | Dataset[Data]) -> list[Data]: ...  # type: ignore[overload-cannot-match]

    def __call__(self, data: Any) -> Any:
        """The graph with the attributes; of several graphs, a list or a data set."""
        return super().__call__(data)

    def forward(self, data: Any) -> Any:
        if isinstance(data, (Sequence, Dataset)):
            graphs = self.apply([data[position] for position in range(len(data))])  # type: ignore[arg-type]
            return _dataset_of(data, graphs) if isinstance(data, InMemoryDataset) and graphs else graphs
        return attach(data, self.additions([data])[0])

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({settings})"


def _dataset_of(dataset: InMemoryDataset, graphs: list[Data]) -> InMemoryDataset:
    """A data set of the same class with these graphs."""
    made = copy.copy(dataset)
    made.transform, made._indices = None, None
    made.data, made.slices = made.collate(graphs)
    return made


def apply_all(transforms: Iterable[BaseTransform], graphs: Sequence[Data]) -> list[Data]:
    """Graphs after several transforms in sequence; the transforms of this package process all graphs at once."""
    graphs = list(graphs)
    for transform in parts_of(*transforms):
        is_ours = isinstance(transform, GraphTransform)
        graphs = transform.apply(graphs) if is_ours else [transform(graph) for graph in graphs]
    return graphs


def parts_of(*transforms: Any) -> Iterator[Any]:
    """The transforms in sequence, with the parts of compositions in their place; None stands for no transform."""
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from parts_of(*transform.transforms)
        elif transform is not None:
            yield transform


def attached(graphs: Sequence[Data], additions: Iterable[dict[str, Any]]) -> list[Data]:
    """Copies of graphs, which share their tensors, with the additions to each."""
    return [attach(copy.copy(graph), added) for graph, added in zip(graphs, additions)]


def attach(data: Data, added: dict[str, Any]) -> Data:
    """Set the attributes of a graph, and remove those whose value is None.

    Raises:
        TypeError: If the graph's class does not shift tables of nodes in a batch, which would then mix graphs.
    """
    is_own = type(data).__inc__ is not Data.__inc__
    for key, value in added.items():
        if value is not None:
            data[key] = value
            if is_own and "index" in key and (shift := data.__inc__(key, value, data._store)) != data.num_nodes:
                raise TypeError(
                    f"{type(data).__name__}.__inc__ must return {data.num_nodes} for {key!r}, its number of nodes (got "
                    f"{shift}), or batches mix graphs: end it with return super().__inc__(key, value, *args, **kwargs)"
                )
        elif key in data:
            del data[key]
    return data
