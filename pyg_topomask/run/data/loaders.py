"""What one seed trains on: a data set split, with features and encodings, served in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.loader import EpochSampler, GraphParts, PartSampler, RandomPartitionLoader, single
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.features import fitted_features, input_features, width
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.samplers import Neighborhoods, clusters
from pyg_topomask.run.data.splits import node_masks, split_items
from pyg_topomask.run.distributed import rank, world_size
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.encoders import build_encodings
from pyg_topomask.run.task import Task, check_targets
from pyg_topomask.transforms import AddRandomWalks, precompute
from pyg_topomask.transforms.base import apply_all

_GRAPHS_TOGETHER = 512  # graphs that are given walks between two ticks of the progress bar


@dataclass
class Splits:
    """What one seed trains on; of a single graph each part is that graph, with its nodes in ``data.mask``.

    Args:
        train: Training graphs.
        val: Validation graphs.
        test: Test graphs.
        task: What is predicted.
        in_channels: Width of the node features.
        edge_channels: Width of the edge features, where there are some.
        redraw: Transforms that draw afresh each time a training graph is served, by ``set_epoch``.
        period: Epochs that share their walks.
    """

    train: Sequence[Data]
    val: Sequence[Data]
    test: Sequence[Data]
    task: Task
    in_channels: int
    edge_channels: int | None
    redraw: tuple[BaseTransform, ...] = ()
    period: int = 1

    @property
    def is_one_graph(self) -> bool:
        """Whether the parts are nodes of one graph."""
        return "mask" in self.train[0]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of labelled graphs or nodes in each part."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: int(part[0].mask.sum()) if self.is_one_graph else len(part) for name, part in parts.items()}

    def set_epoch(self, epoch: int) -> None:
        """Use this epoch's random draws."""
        for transform in self.redraw:
            if hasattr(transform, "set_epoch"):
                walks = isinstance(transform, AddRandomWalks)
                transform.set_epoch(epoch - epoch % self.period if walks else epoch)


def prepare(
    config: Config,
    dataset: LoadedDataset,
    seed: int,
    sampling_transforms: Sequence[BaseTransform],
    tick: Callable[[], Any],
) -> Splits:
    """Split the data set for one seed, encode positions and draw walks and the like, with a ``tick`` for each graph.

    Encodings are functions of a graph and are kept in the cache folder. Of a graph that is served in parts, each part
    has those of the whole graph, and draws of its own.
    """
    graphs, parts = read_features(config, dataset, seed)
    in_parts = config.train.sampler != "full_batch"
    if in_parts and not dataset.is_one_graph:
        raise RunError(f"train.sampler: {config.train.sampler} takes parts of one graph (got {len(graphs)} graphs)")
    graphs = precompute(graphs, build_encodings(config), num_workers=config.num_workers)
    redrawn = [step for step in sampling_transforms if in_parts or _is_redrawn(config, step)]
    fresh = ([dataset.resample] if dataset.resample is not None else []) + redrawn
    once = [step for step in sampling_transforms if step not in redrawn]
    whole, graphs, fixed = list(graphs), [], []
    for first in range(0, len(whole), _GRAPHS_TOGETHER):
        graphs += apply_all(once, whole[first : first + _GRAPHS_TOGETHER])
        fixed += apply_all(redrawn, graphs[first:])
        for _ in graphs[first:]:
            tick()
    sizes = (width(graphs[0].x) or 1, width(graphs[0].edge_attr))
    drawn_afresh = tuple(fresh), max(1, config.topomask.redraw)
    if dataset.is_one_graph:
        served = [_with_mask(graph, mask) for graph, mask in zip([graphs[0], fixed[0], fixed[0]], parts)]
        return Splits([served[0]], [served[1]], [served[2]], dataset.task, *sizes, *drawn_afresh)
    evaluated = fixed
    if dataset.resample is not None:  # one draw, of epoch 0, for all evaluations
        shown = {i for part in parts[1:] for i in part} if dataset.task.ranked else set()
        evaluated = [dataset.resample(graph) if i in shown else graph for i, graph in enumerate(fixed)]
    train, val, test = parts
    return Splits(
        [graphs[i] for i in train], [evaluated[i] for i in val], [evaluated[i] for i in test], dataset.task, *sizes,
        *drawn_afresh,
    )  # fmt: skip


def read_features(config: Config, dataset: LoadedDataset, seed: int) -> tuple[list[Data], tuple[Any, Any, Any]]:
    """The graphs with the features that the model is given, and the parts of the split.

    Returns:
        The graphs, and for training, validation and test the numbers of graphs; of a single graph masks of its nodes.
    """
    features = input_features(config)
    graphs = [_checked(features(graph), dataset.task) for graph in dataset.graphs]
    parts: tuple[Any, Any, Any]
    if dataset.is_one_graph:
        parts = node_masks(config.dataset, graphs[0], seed)
        training = [Data(x=graphs[0].x[parts[0]], edge_attr=graphs[0].get("edge_attr"))]
    else:
        parts = _graph_parts(config, dataset, graphs, seed)
        training = [graphs[i] for i in parts[0]]
    for cls in fitted_features(config):
        step = cls(training)
        graphs = [step(graph) for graph in graphs]
    return graphs, parts


def served_features(config: Config, dataset: LoadedDataset, number: int) -> Data:
    """One graph with the features that the model is given in a run with the config's seed."""
    if fitted_features(config):
        return read_features(config, dataset, config.seed)[0][number]
    return input_features(config)(dataset.graphs[number])


def _is_redrawn(config: Config, step: BaseTransform) -> bool:
    walks = config.topomask
    return walks.redraw > 0 and walks.transition == "uniform" and isinstance(step, AddRandomWalks)


def _graph_parts(
    config: Config, dataset: LoadedDataset, graphs: Sequence[Data], seed: int
) -> tuple[list[int], list[int], list[int]]:
    data, labels = config.dataset, None
    if "stratified" in data.split_mode and dataset.task.level == "graph" and dataset.task.kind != "subtoken":
        labels = torch.cat([dataset.task.target(graph) for graph in graphs]).long()
    train, val, test = (part.tolist() for part in split_items(data, len(graphs), labels, dataset.parts, seed))
    return train, val, test


def _checked(data: Data, task: Task) -> Data:
    check_targets(task, data)
    if data.x.is_floating_point() and not torch.isfinite(data.x).all():
        raise RunError("dataset: the node features hold NaN or infinite values")
    return data


def _with_mask(data: Data, mask: Tensor) -> Data:
    data = data.clone()
    for name in ("train_mask", "val_mask", "test_mask"):
        if name in data:
            del data[name]
    data.mask = mask
    return data


class Served(Dataset[Data]):
    """Graphs that are transformed each time they are served; the originals stay as they are."""

    def __init__(self, graphs: Sequence[Data], transforms: Sequence[BaseTransform] = ()) -> None:
        self.graphs, self.transforms = graphs, tuple(transforms)

    def replace(self, graphs: Sequence[Data]) -> None:
        """Serve other graphs from here on."""
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Data]:
        return apply_all(self.transforms, [self.graphs[index] for index in indices])


class Joined(Served):
    """Batches joined once: what masks build for a batch is then kept from one evaluation to the next.

    Several processes share out the graphs of each batch, none twice.

    Args:
        graphs: The graphs.
        batch_size: Graphs in a batch of all processes; :obj:`None` serves each as it is.
    """

    def __init__(self, graphs: Sequence[Data], batch_size: int | None) -> None:
        super().__init__(graphs)
        self.batch_size = batch_size
        self.replace(graphs)

    def replace(self, graphs: Sequence[Data]) -> None:
        """Serve other graphs from here on."""
        self.graphs = self.batches = graphs
        if self.batch_size is not None:
            starts = range(0, len(graphs), self.batch_size)
            shares = [list(graphs[start : start + self.batch_size])[rank() :: world_size()] for start in starts]
            self.batches = [Batch.from_data_list(share) for share in shares if share]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitems__(self, indices: Sequence[int]) -> list[Data]:
        return [self.batches[index] for index in indices]


def _ready(graphs: Sequence[Data], batch_size: int | None) -> DataLoader:
    return DataLoader(Joined(graphs, batch_size), batch_size=1, collate_fn=single)


def loaders(config: Config, splits: Splits, seed: int) -> tuple[DataLoader, DataLoader, DataLoader]:
    """Training, validation and test loaders; only the first shuffles, by (seed, epoch).

    ``train.batch_size`` is that of all processes together, so that a run means the same on any number of them.
    """
    common: dict[str, Any] = {"num_workers": config.num_workers, "generator": torch.Generator().manual_seed(seed)}
    if splits.is_one_graph:
        return _one_graph_loader(config, splits, seed, common), _ready(splits.val, None), _ready(splits.test, None)
    share = _share(config.train.batch_size)
    _refuse_small_parts(splits)
    train = Served(splits.train, splits.redraw)
    sampler = EpochSampler(len(splits.train), seed, rank(), world_size(), config.train.shuffle)
    return (
        GraphLoader(train, sampler=sampler, batch_size=share, **common),
        _ready(splits.val, config.train.batch_size),
        _ready(splits.test, config.train.batch_size),
    )


def evaluation_loaders(config: Config, splits: Splits) -> tuple[DataLoader, DataLoader, DataLoader]:
    """Loaders that serve all three parts as they are evaluated, the training part included: each item once."""
    if not splits.is_one_graph:
        _refuse_small_parts(splits)
    batch_size = None if splits.is_one_graph else config.train.batch_size
    return _ready(splits.train, batch_size), _ready(splits.val, batch_size), _ready(splits.test, batch_size)


def _refuse_small_parts(splits: Splits) -> None:
    for name, part in (("training", splits.train), ("validation", splits.val), ("test", splits.test)):
        if len(part) < world_size():
            raise RunError(f"dataset.split: the {name} part has {len(part)} graphs for {world_size()} processes")


def _share(batch_size: int) -> int:
    if batch_size % world_size() != 0:
        raise RunError(
            f"train.batch_size is shared out over {world_size()} processes, which must divide it (got {batch_size})"
        )
    return batch_size // world_size()


def _one_graph_loader(config: Config, splits: Splits, seed: int, common: dict[str, Any]) -> DataLoader:
    graph, train = splits.train[0], config.train
    transform = Compose(list(splits.redraw)) if splits.redraw else None
    if train.sampler == "full_batch":
        if world_size() > 1:
            raise RunError(
                f"train.sampler: full_batch gives {world_size()} processes the same graph; use random_partition"
            )
        return DataLoader(Served(splits.train, splits.redraw), batch_size=1, collate_fn=single, **common)
    shares: dict[str, Any] = {"seed": seed, "shuffle": train.shuffle, "rank": rank(), "num_processes": world_size()}
    if train.sampler == "random_partition":
        if train.num_parts > graph.num_nodes:
            raise RunError(f"train.num_parts: the graph has {graph.num_nodes} nodes (got {train.num_parts})")
        return RandomPartitionLoader(graph, train.num_parts, transform, **shares, **common)
    if train.sampler == "neighbor":
        parts: GraphParts = Neighborhoods(graph, _share(train.batch_size), train.neighbor_sizes, seed, transform)
    else:
        fixed = clusters(graph, train.num_parts)
        parts = GraphParts(graph, len(fixed), seed, transform, fixed)
    order = PartSampler(len(parts), **shares)
    return DataLoader(parts, sampler=order, batch_size=1, collate_fn=single, **common)
