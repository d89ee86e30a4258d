"""The data of one seed: split, with features and encodings, and served in batches."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.data import GraphParts
from pyg_topomask.loader import EpochSampler, collate, single
from pyg_topomask.run.data.parts import evaluation_loader, graph_parts, share_of, training_loader
from pyg_topomask.run.data.source import LoadedDataset, Serving, Sizes, Source, node_masks, split_items
from pyg_topomask.run.distributed import rank, world_size
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.process_memory import available_mib
from pyg_topomask.run.task import PARTS, Task, check_targets
from pyg_topomask.transforms import AddRandomWalks, apply_all, precompute

Features = tuple[list[Data], tuple[Any, Any, Any], tuple[Mapping[str, Any], ...]]
"""Graphs with features, the parts of the split, and constants of fitted features: the result of `read_features`."""

Stored = Sequence[Mapping[str, Any]] | None
"""Constants of fitted features that another run has found."""

Tick = Callable[[int, str], Any]
"""Shows progress: the number of graphs that are done, and what is done with them."""

_GRAPHS_TOGETHER = 256  # graphs that get their walks between two ticks of the progress bar


@dataclass
class Splits:
    """The training, validation and test sets of one seed.

    If the data set is one graph, each set is that graph with a mask ``counted`` of its own nodes.

    Args:
        train: Training graphs.
        val: Validation graphs.
        test: Test graphs.
        task: What is predicted.
        sizes: What the model must fit.
        serve_transforms: Transforms with ``set_epoch`` that are applied to a training graph each time it is loaded.
        period: Number of epochs that share their walks.
        fitted: Constants of the transforms that were fitted to the training graphs.
    """

    train: Sequence[Data]
    val: Sequence[Data]
    test: Sequence[Data]
    task: Task
    sizes: Sizes
    serve_transforms: tuple[BaseTransform, ...] = ()
    period: int = 1
    fitted: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_one_graph(self) -> bool:
        """Whether the parts are nodes of one graph."""
        return "counted" in self.train[0]

    @property
    def targets(self) -> Tensor:
        """Targets of the training set."""
        return torch.cat([*self._targets("train")])

    def _targets(self, part: str) -> Iterator[Tensor]:
        for graph in getattr(self, part):
            yield self.task.target(graph)[graph.counted if "counted" in graph else ...]

    def check_known(self) -> None:
        """Check that training and validation have a target. Raises RunError if all of them are NaN."""
        for part in PARTS[:2] if self.task.kind in ("regression", "multilabel") else ():
            if all(bool(target.isnan().all()) for target in self._targets(part)):  # stops at the first one
                raise RunError(f"dataset: all targets of the {part} set are NaN (unknown); training needs known ones")

    @property
    def counts(self) -> dict[str, int]:
        """Number of labelled graphs or nodes in each part."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: int(part[0].counted.sum()) if self.is_one_graph else len(part) for name, part in parts.items()}

    def data_format(self) -> dict[str, Any]:
        """What a trained model needs to know of its data, as plain containers: task, widths, fitted constants."""
        sizes = {"in_channels": self.sizes.in_channels, "edge_channels": self.sizes.edge_channels}
        return {"task": asdict(self.task), **sizes, "fitted": [dict(constants) for constants in self.fitted]}

    def set_epoch(self, epoch: int) -> None:
        """Use this epoch's random draws."""
        for transform in self.serve_transforms:
            if hasattr(transform, "set_epoch"):
                walks = isinstance(transform, AddRandomWalks)
                transform.set_epoch(epoch - epoch % self.period if walks else epoch)


def prepare(
    source: Source,
    dataset: LoadedDataset,
    seed: int,
    sampling_transforms: Sequence[BaseTransform],
    tick: Tick = lambda done, doing: None,
    features: Features | None = None,
    cache: bool = True,
    inference: bool = False,
    stored: Stored = None,
) -> Splits:
    """Split the data set for one seed, compute encodings and draw walks.

    Encodings are functions of a graph. If a graph is served in parts, its encodings are computed on the whole graph,
    and walks are drawn on each part.

    Args:
        source: How graphs are prepared, split and served.
        dataset: The data set.
        seed: Seed of the split.
        sampling_transforms: What draws walks, edges and trees.
        tick: Shows progress.
        features: Result of `read_features`; computed here if :obj:`None`.
        cache: Whether encodings are kept in the cache folder.
        inference: Whether all three sets are only evaluated.
        stored: See `read_features`.
    """
    serving = source.serving
    graphs, parts, fitted = features or read_features(source, dataset, seed, stored)
    if serving.sampler != "full_batch" and not dataset.is_one_graph:
        raise RunError(f"train.sampler: {serving.sampler} takes parts of one graph (got {len(graphs)} graphs)")
    graphs = precompute(graphs, source.encodings, cache=cache, tick=lambda done: tick(done, "encodings"))
    redrawn = [step for step in sampling_transforms if _is_redrawn(step, source, inference)]
    once = [step for step in sampling_transforms if step not in redrawn]
    in_evaluation = redrawn if serving.evaluation == "full_batch" else []  # otherwise drawn when a part is cut
    graphs, evaluated = _drawn(source, graphs, once, in_evaluation, tick)
    if dataset.is_one_graph:
        seen = (graphs[0], evaluated[0], evaluated[0])
        train, val, test = ([_with_counted(graph, counted)] for graph, counted in zip(seen, parts))
    else:
        train, val, test = [graphs[i] for i in parts[0]], *([evaluated[i] for i in part] for part in parts[1:])
        if dataset.resample is not None:
            # Negatives of evaluations are drawn once, with seed 0, and are the same for all seeds of a run.
            fixed = dataset.resample(0)
            if dataset.task.ranked:
                val, test = ([fixed(graph) for graph in part] for part in (val, test))
            if inference:
                train = [fixed(graph) for graph in train]
    fresh = (*([] if dataset.resample is None else [dataset.resample(seed)]), *redrawn)
    sizes = Sizes.of(graphs[0], dataset.task.num_outputs, dataset.task.level)
    return Splits(train, val, test, dataset.task, sizes, fresh, max(1, serving.redraw), fitted)


def _is_redrawn(step: BaseTransform, source: Source, inference: bool) -> bool:
    """Whether a transform is applied each time a training graph, or a part of one, is served."""
    if inference and source.serving.evaluation == "full_batch":
        return False  # all parts are evaluated
    if source.serving.sampler != "full_batch":
        return True
    redraws_walks = source.serving.redraw > 0 and not source.follows_attention
    return redraws_walks and isinstance(step, AddRandomWalks)


def _drawn(
    source: Source,
    graphs: Sequence[Data],
    once: Sequence[BaseTransform],
    in_evaluation: Sequence[BaseTransform],
    tick: Tick,
) -> tuple[list[Data], list[Data]]:
    """The graphs after the transforms ``once``, and these graphs as evaluations see them."""
    drawn: list[Data] = []
    evaluated: list[Data] = []
    for start in range(0, len(graphs), _GRAPHS_TOGETHER):
        some = graphs[start : start + _GRAPHS_TOGETHER]
        with source.refusing():
            new = apply_all(once, some)
            drawn += new
            evaluated += apply_all(in_evaluation, new)
        check_memory(source, some, evaluated[-len(some) :], len(graphs) - len(drawn))
        tick(len(drawn), "walks, edges and trees")
    return drawn, evaluated


def check_memory(source: Source, given: Sequence[Data], drawn: Sequence[Data], remaining: int) -> None:
    """Refuse walks, edges and trees that will not fit into memory; the system would end the process without a message.

    Args:
        source: Names the data and the model.
        given: Some graphs of the data set.
        drawn: The same graphs after the transforms.
        remaining: Number of graphs that have none of these attributes yet.

    Raises:
        RunError: If those of the remaining graphs will take more memory than is left.
    """
    pairs = zip(given, drawn)
    added = (value for old, new in pairs for key, value in new.to_dict().items() if key not in old)
    size = sum(value.nbytes for value in added if isinstance(value, Tensor)) / 2**20 / max(len(drawn), 1)
    needed, left = size * remaining, max(available_mib(), 0.0)
    if needed > left:
        raise RunError(
            f"{source.title}: walks, edges and trees of {source.name} do "
            f"not fit into memory: {remaining} more graphs need about {needed:,.0f} MiB, and {left:,.0f} MiB are "
            "left; lower topomask.num_walks or prep.exp_deg, or choose another mask"
        )


def read_features(source: Source, dataset: LoadedDataset, seed: int, stored: Stored = None) -> Features:
    """The graphs with the features that the model takes, and the parts of the split.

    If ``stored`` is :obj:`None`, the transforms in ``fitted`` are fitted to the training graphs.

    Returns:
        The graphs; the indices of the training, validation and test graphs, or masks of nodes for a single graph; the
        constants of the transforms in ``fitted``.
    """
    task = dataset.task
    graphs = [_checked(source.features(graph), task) for graph in dataset.graphs]
    parts: tuple[Any, Any, Any]
    if dataset.is_one_graph:
        parts = node_masks(source, graphs[0], seed)
        training = [Data(x=graphs[0].x[parts[0]], edge_attr=graphs[0].get("edge_attr"))] if source.fitted else []
    else:
        by_class = "stratified" in source.split.mode and task.level == "graph"
        labels = torch.cat([task.target(graph) for graph in graphs]).long() if by_class else None
        train, val, test = split_items(source, len(graphs), labels, dataset.parts, seed)
        parts = (train.tolist(), val.tolist(), test.tolist())
        for part in parts:
            _check_attributes(graphs, part)
        training = [graphs[i] for i in parts[0]]
    fitted: list[Mapping[str, Any]] = []
    for number, cls in enumerate(source.fitted):
        step = cls.fit(training) if stored is None else cls(stored[number])
        fitted.append(step.constants)
        graphs = [step(graph) for graph in graphs]
    return graphs, parts, tuple(fitted)


def served_features(source: Source, dataset: LoadedDataset, numbers: Sequence[int], seed: int) -> list[Data]:
    """Some graphs, by their numbers, with the features that the model takes in a run with this seed."""
    if source.fitted:
        graphs = read_features(source, dataset, seed)[0]
        return [graphs[number] for number in numbers]
    return [source.features(dataset.graphs[number]) for number in numbers]


def _checked(data: Data, task: Task) -> Data:
    """The graph, if its targets fit the task and its features are finite; one on disk is not read here."""
    if "disk" in data:
        return data
    check_targets(task, data)
    if data.x is not None and data.x.is_floating_point() and not torch.isfinite(data.x).all():
        raise RunError("dataset: the node features contain NaN or infinite values")
    return data


def _check_attributes(graphs: Sequence[Data], part: Sequence[int]) -> None:
    """Refuse a set in which only some graphs have an attribute: a batch has the attributes of its first graph."""
    first = {*graphs[part[0]].keys()} if part else set()
    for number in part:
        if found := first.symmetric_difference(graphs[number].keys()):
            one = f"of graphs {part[0]} and {number}, only one has {min(found)!r}"
            raise RunError(f"dataset: graphs of a set need the same attributes ({one}); add it to all, or delete it")


def _with_counted(data: Data, counted: Tensor) -> Data:
    """The graph, with the mask ``[N]`` of the nodes that losses and metrics count."""
    data = copy.copy(data)
    for name in PARTS:
        data[f"{name}_mask"] = None
    data.counted = counted
    return data


class Served(Dataset[Data]):
    """Graphs that are transformed each time they are served; the originals are not changed."""

    def __init__(self, graphs: Sequence[Data], transforms: Sequence[BaseTransform] = ()) -> None:
        self.graphs, self.transforms = graphs, tuple(transforms)

    def replace(self, graphs: Sequence[Data]) -> None:
        """Serve other graphs from now on."""
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitems__(self, indices: Sequence[int]) -> list[Data]:
        return apply_all(self.transforms, [self.graphs[index] for index in indices])


class Joined(Served):
    """Batches that are collated once, so that masks reuse what they computed for a batch in an earlier evaluation.

    The graphs of each batch are distributed over the processes, each to one.

    Args:
        graphs: The graphs.
        batch_size: Number of graphs in a batch of all processes.
    """

    def __init__(self, graphs: Sequence[Data], batch_size: int) -> None:
        self.batch_size = batch_size
        self.replace(graphs)

    def replace(self, graphs: Sequence[Data]) -> None:
        """Serve other graphs from now on."""
        starts = range(0, len(graphs), self.batch_size)
        shares = [list(graphs[start : start + self.batch_size])[rank() :: world_size()] for start in starts]
        self.graphs, self.batches = graphs, [collate(share) for share in shares if share]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitems__(self, indices: Sequence[int]) -> list[Data]:
        return [self.batches[index] for index in indices]


def ready_loader(graphs: Sequence[Data], batch_size: int) -> DataLoader:
    """A loader for evaluations, whose batches are collated once."""
    return DataLoader(Joined(graphs, batch_size), batch_size=1, collate_fn=single)


def loaders(
    serving: Serving, splits: Splits, seed: int, pin_memory: bool = False
) -> tuple[DataLoader, DataLoader, DataLoader]:
    """Training, validation and test loaders; only the first shuffles, by (seed, epoch).

    ``batch_size`` counts the graphs of all processes, so that a run is the same on any number of them. With
    ``pin_memory``, the GPU works while the next batch is copied to it.
    """
    parts = None
    if splits.is_one_graph and serving.sampler != "full_batch":
        parts = graph_parts(serving, splits.train[0], seed, splits.serve_transforms)
    val, test = evaluation_loaders(serving, splits, seed, PARTS[1:], parts)
    common: dict[str, Any] = {"num_workers": serving.num_workers, "generator": torch.Generator().manual_seed(seed)}
    common["pin_memory"] = pin_memory
    served = Served(splits.train, splits.serve_transforms)
    if parts is not None:
        train = training_loader(serving, parts, common)
    elif not splits.is_one_graph:
        order = EpochSampler(len(splits.train), seed, rank(), world_size(), serving.shuffle)
        size = share_of(serving.batch_size)
        train = DataLoader(served, sampler=order, batch_size=size, collate_fn=collate, **common)
    elif world_size() > 1:
        message = f"full_batch gives {world_size()} processes the same graph; use random_partition"
        raise RunError(f"train.sampler: {message}")
    else:
        train = DataLoader(served, batch_size=1, collate_fn=single, **common)
    return train, val, test


def evaluation_loaders(
    serving: Serving, splits: Splits, seed: int, names: Sequence[str] = PARTS, parts: GraphParts | None = None
) -> list[DataLoader]:
    """Loaders that serve each item of the named sets once, as in an evaluation.

    The ``parts`` of a single graph are made here if :obj:`None`.
    """
    sets = [getattr(splits, name) for name in names]
    if serving.evaluation != "full_batch":
        common = {"num_workers": serving.num_workers, "generator": torch.Generator().manual_seed(seed)}
        parts = parts or graph_parts(serving, splits.train[0], seed, splits.serve_transforms)
        return [evaluation_loader(parts, chosen[0], common) for chosen in sets]
    if splits.is_one_graph:
        return [DataLoader(Served(chosen), batch_size=1, collate_fn=single) for chosen in sets]
    for name, size in splits.counts.items():
        if size < world_size():
            raise RunError(f"dataset.split: the {name} part has {size} graphs for {world_size()} processes")
    return [ready_loader(chosen, serving.batch_size) for chosen in sets]
