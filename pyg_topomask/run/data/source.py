"""Where the graphs of an experiment come from, and how they are prepared, split and served."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import index_to_mask, mask_to_index

from pyg_topomask.run.data.features import FittedTransform
from pyg_topomask.run.errors import RunError, no_such
from pyg_topomask.run.task import PARTS, Parts, Task, classification


class Sizes(NamedTuple):
    """What the data decide about a model.

    Args:
        in_channels: Width of the node features ``x``.
        out_channels: Width of a prediction.
        edge_channels: Width of ``edge_attr``; None without edge features.
        level: What has a target, ``"graph"``, ``"node"`` or ``"edge"``.
    """

    in_channels: int
    out_channels: int
    edge_channels: int | None
    level: str

    @classmethod
    def of(cls, graph: Data, out_channels: int, level: str) -> "Sizes":
        """Those of a graph with the features that the model takes."""
        return cls(width(graph.x) or 1, out_channels, width(graph.edge_attr), level)


def width(features: Tensor | None) -> int | None:
    """Number of columns of features; 1 for a vector, :obj:`None` if there are no features."""
    return None if features is None else features.size(1) if features.dim() == 2 else 1


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
    sizes = [len(part) for part in datasets]
    train, val, test = torch.arange(sum(sizes)).split(sizes)
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


_INDEX = ("integers [2, E]", (torch.int64, torch.int32))
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_REAL = ("a dense tensor of real numbers", (*_INDEX[1], *_FLOATS, torch.int16, torch.int8, torch.uint8, torch.bool))


def _check(graph: Data, number: int, task: Task) -> None:
    """Refuse a graph whose attributes are not numbers in memory, or whose targets are no classes. Raises RunError."""
    target = graph.get(task.target_name)
    if target is None:
        raise RunError(
            f"dataset.task: graphs need {task.target_name!r}, the targets of each {task.level}; graph {number} has none"
        )
    for name, (wanted, kinds) in {
        "x": _REAL,
        "edge_attr": _REAL,
        "edge_index": _INDEX,
        task.target_name: _REAL,
    }.items():
        value = graph.get(name)
        dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if value is not None and not (dense and value.dtype in kinds):
            got = f"{value.dtype}, {value.layout}, on {value.device}" if isinstance(value, Tensor) else repr(value)[:80]
            raise RunError(f"dataset: {name!r} of graph {number} must be {wanted} (got {got})")
    if task.kind in ("binary", "multiclass") and not (target.numel() and bool(target.isfinite().all())):
        raise RunError(f"dataset: {task.target_name!r} of graph {number} must hold classes 0, 1, … (got none, or NaN)")


_MODES = ("auto", "standard", "random", "fixed", "errica")
_SAMPLERS = ("full_batch", "random_partition", "cluster", "neighbor", "walks")


@dataclass(frozen=True)
class Split:
    """How the items of a data set, graphs or the nodes of one graph, are divided into three sets.

    Args:
        mode: ``"standard"``: the data set's own parts, or masks of its single graph; ``"random"``: shares of a random
            order; ``"auto"``: the former if the data have them, else the latter; ``"fixed"``: shares in the order of
            the data set; ``"cv-kfold-K"``, ``"cv-stratifiedkfold-K"``: folds; ``"errica"``: published folds.
        shares: Shares, or numbers of items, for training, validation and test.
        index: Number of the test fold, or of the data set's own split if it has several.
        seed: Seed of the split; that of the run if :obj:`None`, and 0 for folds.
        folder: Folder of published folds.

    Raises:
        ValueError: If there is no such mode.
    """

    mode: str = "auto"
    shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    index: int = 0
    seed: int | None = None
    folder: str = ""

    def __post_init__(self) -> None:
        if self.mode not in _MODES and not re.fullmatch(r"cv-(stratified)?kfold-\d+", self.mode):
            raise ValueError(no_such("split", self.mode, [*_MODES, "cv-kfold-K", "cv-stratifiedkfold-K"]))

    @property
    def num_folds(self) -> int | None:
        """K of ``cv-[stratified]kfold-K``; None for other modes."""
        return int(self.mode.rsplit("-", 1)[1]) if self.mode.startswith("cv-") else None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the split, by its key in configs; the seed is None if each run draws its own split."""
        seed = self.seed or 0 if self.num_folds is not None else self.seed
        used: dict[str, dict[str, Any]] = {
            "standard": {},
            "errica": {"dataset.split_dir": self.folder},
            "fixed": {"dataset.split": self.shares},
            "random": {"dataset.split": self.shares, "dataset.split_seed": seed},
        }
        return {"dataset.split_mode": self.mode, **used.get(self.mode, {"dataset.split_seed": seed})}


@dataclass(frozen=True)
class Serving:
    """How graphs, or parts of one large graph, are put into batches.

    Args:
        batch_size: Number of graphs in a batch, or of training nodes in a batch of neighbourhoods.
        shuffle: Whether the training graphs or parts are shuffled in each epoch.
        num_workers: Number of processes that load data; it does not change the results.
        sampler: ``"full_batch"``: whole graphs; ``"random_partition"``, ``"cluster"``, ``"neighbor"``, ``"walks"``:
            parts of one large graph.
        num_parts: Number of parts (random_partition, cluster).
        neighbor_sizes: Number of neighbours drawn per node, for each hop (neighbor).
        max_nodes: Largest number of nodes in the neighbourhood of a node (walks).
        evaluation: Sampler of evaluations: ``"full_batch"``, or the same as ``sampler``.
        redraw: Number of epochs after which the training graphs get new walks; 0: never.

    Raises:
        ValueError: If a number is out of range, or there is no such sampler.
    """

    batch_size: int = 32
    shuffle: bool = True
    num_workers: int = 0
    sampler: str = "full_batch"
    num_parts: int = 10
    neighbor_sizes: Sequence[int] = (20, 15, 10, 5)
    max_nodes: int = 32
    evaluation: str = "full_batch"
    redraw: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_workers", 0), ("redraw", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"'{name}' must be at least {least} (got {getattr(self, name)})")
        if self.sampler not in _SAMPLERS:
            raise ValueError(no_such("sampler", self.sampler, _SAMPLERS))
        if self.evaluation not in ("full_batch", self.sampler):
            raise ValueError(f"'evaluation' must be full_batch or 'sampler', {self.sampler} (got {self.evaluation})")


def _unchanged(data: Data) -> Data:
    return data


def _none(seed: int) -> Sequence[BaseTransform]:
    return ()


@dataclass(frozen=True)
class Source:
    """The graphs of an experiment.

    Args:
        graphs: A list of graphs or a data set of PyG, a single graph whose nodes are split, three of these (training,
            validation, test), or a function without arguments that returns one of them. A data set's own ``transform``
            is applied once, not in each epoch.
        task: What is predicted; the numbers of classes and targets are read from the graphs.
        name: Name of the data set, for messages.
        features: Puts the features of a graph into the form that the model takes.
        encodings: Transforms that are functions of the graph alone; what they compute is kept in the cache folder.
        draws: Transforms that draw something, such as walks, as a function of the seed. They are applied last.
        fitted: Classes of transforms that are fitted to the training graphs and applied to the features of all.
        split: How the items are divided; by default, three sets and masks of a single graph are kept.
        serving: How batches are made.
        follows_attention: Whether redrawn walks follow the attention of the first layer.
        title: What the model is called in messages about graphs that do not fit it.
        hint: What to add to a message about a graph, such as the key to set.
        identity: What two experiments on the same data have in common, by its key in configs.
    """

    graphs: Any
    task: Task | None = None
    name: str = "data"
    features: Callable[[Data], Data] = field(default_factory=lambda: _unchanged)
    encodings: Sequence[BaseTransform] = ()
    draws: Callable[[int], Sequence[BaseTransform]] = field(default_factory=lambda: _none)
    fitted: Sequence[type[FittedTransform]] = ()
    split: Split = field(default_factory=Split)
    serving: Serving = field(default_factory=Serving)
    follows_attention: bool = False
    title: str = "the model"
    hint: Callable[[str], str] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> LoadedDataset:
        """The data set.

        Raises:
            RunError: If the graphs do not fit the task.
        """
        is_function = callable(self.graphs) and not isinstance(self.graphs, Data)  # a Data can be called, too
        found = self.graphs() if is_function else self.graphs
        if isinstance(found, LoadedDataset):
            return found
        if self.task is None:
            raise RunError("the data need a 'task', such as Task('graph', 'regression', 1)")
        return as_dataset(found, self.task)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Report a graph that a transform or a layer refuses as a :class:`RunError` that names the layers and a key."""
        try:
            yield
        except ValueError as error:
            hint = self.hint(str(error)) if self.hint else ""
            raise RunError(f"{self.title}: a graph of {self.name} does not fit: {error}{hint}") from error


def split_items(data: Source, size: int, labels: Tensor | None, own: Parts | None, seed: int) -> Parts:
    """Indices of the training, validation and test items, graphs or nodes.

    Folds are drawn with ``split_seed`` (0 if it is not given), so that all seeds share them. Fold ``split.index`` is
    the test set, and the next fold is the validation set. A random split is drawn with ``split_seed``, or with
    ``seed`` if it is not given.

    Args:
        data: Gives the kind of split.
        size: Number of items.
        labels: Class of each item, for stratified folds.
        own: The split of the data set itself, for ``standard``.
        seed: Seed of the run.
    """
    mode, split = data.split.mode, data.split
    if mode != "errica" and split.index >= (split.num_folds or 1):
        raise RunError(f"dataset.split_index: {data.name} has {split.num_folds or 1} split(s) (got {split.index})")
    if mode == "standard" or (mode == "auto" and own is not None):
        if own is None:
            raise RunError(f"dataset.split_mode: {data.name} has no standard split; use random or cv-kfold-10")
        return own
    if mode == "errica":
        return errica_split(data, size)
    if mode == "fixed":  # the first items are for training, the next for validation, the last for test
        return _cut(torch.arange(size), _sizes(split, size))
    if split.num_folds is None:
        generator = torch.Generator().manual_seed(seed if split.seed is None else split.seed)
        return _cut(torch.randperm(size, generator=generator), _sizes(split, size))
    if size < split.num_folds:
        raise RunError(f"dataset.split_mode: {split.num_folds} folds need as many graphs (got {size})")
    classes = torch.zeros(size, dtype=torch.long)
    if "stratified" in mode:
        if labels is None or labels.numel() != size or labels.is_floating_point():
            raise RunError("dataset.split_mode: stratified folds need one class for each item; use cv-kfold")
        classes = labels.view(-1)
    fold = folds(classes, split.num_folds, split.seed or 0)
    test = fold == split.index
    val = fold == (split.index + 1) % split.num_folds
    return mask_to_index(~(test | val)), mask_to_index(val), mask_to_index(test)


def folds(classes: Tensor, num_folds: int, seed: int) -> Tensor:
    """Fold ``[n]`` of each item; folds differ by at most one in size and in the number of items of each class."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(classes.numel(), generator=generator)
    order = shuffled[torch.argsort(classes[shuffled], stable=True)]  # class by class, shuffled within
    fold = torch.empty_like(order)
    fold[order] = torch.arange(classes.numel()) % num_folds
    return fold


def _sizes(split: Split, size: int) -> tuple[int, int, int]:
    """Sizes of the three sets; ``shares`` are shares, or numbers of items if its first number is at least 1."""
    if split.shares[0] >= 1:
        counts = tuple(int(count) for count in split.shares)
    else:
        num_train, num_val = int(split.shares[0] * size), int(split.shares[1] * size)
        rest = size - num_train - num_val  # the test set if the shares add up to 1
        whole = math.isclose(sum(split.shares), 1)
        counts = (num_train, num_val, rest if whole else min(rest, round(split.shares[2] * size)))
    if min(counts) < 1 or sum(counts) > size:
        raise RunError(f"dataset.split: {size} items are too few for the shares {list(split.shares)}")
    return counts  # type: ignore[return-value]


def _cut(order: Tensor, counts: tuple[int, int, int]) -> Parts:
    train, val, test = (part.sort().values for part in order[: sum(counts)].split(counts))
    return train, val, test


def errica_split(data: Source, size: int) -> Parts:
    """Fold ``split_index`` of the published splits of the TU data sets.

    Reference: Errica et al., *A Fair Comparison of Graph Neural Networks for Graph Classification*, ICLR 2020. The
    files ``<group>/<name>_splits.json`` of its repository are searched in ``dataset.split_dir`` and in
    ``splits/errica2020`` of the data folders. For social data sets, the splits for constant features are used.
    """
    folders = [Path(data.split.folder).expanduser()] if data.split.folder else []
    bases = [data.identity.get("dataset.dir"), os.environ.get("TOPOMASK_DATA")]
    folders += [Path(base).expanduser() / "splits" / "errica2020" for base in bases if base]
    names = [f"{group}{data.name}{end}_splits.json" for group in ("", "*/") for end in ("", "_full")]
    path = next((path for folder in folders for name in names for path in sorted(folder.glob(name))), None)
    if path is None:
        searched = ", ".join(map(str, folders)) or "dataset.split_dir, dataset.dir and $TOPOMASK_DATA are not set"
        raise RunError(
            f"dataset.split_mode: no {names[0]} was found ({searched}). The files are in 'data_splits' of "
            "github.com/diningphil/gnn-comparison; dataset.split_mode=random needs no files"
        )
    try:
        fold = json.loads(path.read_text(encoding="utf-8"))[data.split.index]
        inner = fold["model_selection"][0]
        train, val, test = (torch.tensor(part) for part in (inner["train"], inner["validation"], fold["test"]))
    except (ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"{path} is not a file of splits with fold {data.split.index} ({reason})") from None
    if int(torch.cat([train, val, test]).max()) >= size:
        raise RunError(f"{path} is for another data set: it lists graphs beyond the {size} of {data.name}")
    return train, val, test


def node_masks(data: Source, graph: Data, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boolean masks ``[N]`` of the training, validation and test nodes; ``split.index`` selects a column of several."""
    names, number, index = [f"{part}_mask" for part in PARTS], int(graph.num_nodes), data.split.index
    if data.split.mode in ("standard", "auto") and any(name in graph for name in names):
        for name in names:
            if name not in graph:
                raise RunError(f"dataset: {data.name} has masks, but no {name!r}; add it, or choose a random split")
            if graph[name].numel() % number != 0:
                shape = list(graph[name].shape)
                raise RunError(f"dataset: {name!r} must be a mask of the {number} nodes (got shape {shape})")
        masks = [graph[name].view(number, -1).bool() for name in names]  # files have masks of 0 and 1, too
        count = masks[0].size(1)
        if index >= count:
            raise RunError(f"dataset.split_index: {data.name} has {count} splits (got {index})")
        train, val, test = (mask[:, index if mask.size(1) > 1 else 0] for mask in masks)
        for name, mask in (("train_mask", train), ("val_mask", val)):
            if not mask.any():
                raise RunError(f"dataset: {name!r} of {data.name} marks no node")
        return train, val, test
    parts = split_items(data, number, graph.y if graph.y.dim() == 1 else None, None, seed)
    train, val, test = (index_to_mask(index, number) for index in parts)
    return train, val, test
