"""Data sets by ``dataset.format`` and ``dataset.name``, in GraphGPS's spelling, each through its library's class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch_geometric import datasets as pyg

from pyg_topomask import datasets as ours
from pyg_topomask.run.data.loaded import LoadedDataset
from pyg_topomask.run.data.source import Split
from pyg_topomask.run.errors import did_you_mean
from pyg_topomask.run.graphgps.config.dataset import GENERATED, WITHOUT_STANDARD_SPLIT, DatasetConfig
from pyg_topomask.run.graphgps.formats import clouds, graphs, ogb, own
from pyg_topomask.run.graphgps.formats.graphs import GEOM_GCN, PLANETOID, CityNetwork, one_graph
from pyg_topomask.run.task import Level, Task, classification


@dataclass(frozen=True)
class Format:
    """A family of data sets.

    Args:
        load: Loads one of them, given its config and its task as far as it is known before.
        names: Their names, which a config may spell in any case and with ``_`` for ``-``; any name if empty.
        level: What has a target, graphs or nodes, if no task is known.
        tasks: Task by name, or of all names.
        num_splits: Number of splits of their own, if they have any.
    """

    load: Callable[[DatasetConfig, Task], LoadedDataset]
    names: tuple[str, ...] = ()
    level: Level = "graph"
    tasks: Mapping[str, Task | None] | Task | None = None
    num_splits: int = 1


_SUPERPIXELS = ("edge_wt_region_boundary",)
_BINARY, _TEN_CLASSES, _NUMBER = classification("graph", 2), classification("graph", 10), Task("graph", "regression", 1)
_BENCHMARK = {
    **dict.fromkeys(("MNIST", "CIFAR10", "CSL"), _TEN_CLASSES),
    "PATTERN": classification("node", 2),
    "CLUSTER": classification("node", 6),
}
_LONG_RANGE = {"tree": classification("node", 10), **dict.fromkeys(("share", "ring"), Task("node", "regression", 1))}
_MALNET = ("LocalDegreeProfile", "Constant", "none")
_AREAS = tuple(f"Area_{i}" for i in range(1, 7))

_Nodes = partial(Format, level="node")
# Functions of a class and its arguments, which lack only the config and the task.
_OneGraph, _Ours = partial(partial, one_graph), partial(partial, graphs.generated)
_TenSplits = partial(_Nodes, num_splits=10)

FORMATS: dict[str, Format] = {
    "OGB": Format(ogb.load, tuple(ogb.TASKS), tasks=ogb.TASKS),
    "PyG-LRGBDataset": Format(ogb.lrgb, tuple(ogb.LRGB), tasks=ogb.LRGB),
    "PyG-VOCSuperpixels": Format(partial(ogb.lrgb, name="pascalvoc-sp"), _SUPERPIXELS, tasks=ogb.LRGB["pascalvoc-sp"]),
    "PyG-COCOSuperpixels": Format(partial(ogb.lrgb, name="coco-sp"), _SUPERPIXELS, tasks=ogb.LRGB["coco-sp"]),
    "PyG-GNNBenchmarkDataset": Format(graphs.benchmark, tuple(_BENCHMARK), tasks=_BENCHMARK),
    "PyG-ZINC": Format(graphs.zinc, ("subset", "full"), tasks=_NUMBER),
    "PyG-AQSOL": Format(graphs.aqsol, ("none",), tasks=_NUMBER),
    "PyG-MalNetTiny": Format(graphs.malnet, _MALNET, tasks=classification("graph", 5)),
    "PyG-TUDataset": Format(graphs.tu),
    "PyG-MotifDataset": Format(_Ours(ours.MotifDataset), tuple(ours.MOTIFS), tasks=_BINARY),
    "PyG-InducedCycleDataset": Format(_Ours(ours.InducedCycleDataset), ("none",), tasks=_BINARY),
    "PyG-LongRangeDataset": Format(_Ours(ours.LongRangeDataset), ours.LONG_RANGE, tasks=_LONG_RANGE),
    "PyG-DigitsDataset": Format(graphs.digits, tuple(graphs.CANVAS), tasks=_TEN_CLASSES),
    "PyG-Planetoid": _Nodes(_OneGraph(pyg.Planetoid, PLANETOID), ("Cora", "CiteSeer", "PubMed")),
    "PyG-WebKB": _TenSplits(_OneGraph(pyg.WebKB, GEOM_GCN), ("cornell", "texas", "wisconsin")),
    "PyG-WikipediaNetwork": _TenSplits(
        _OneGraph(pyg.WikipediaNetwork, GEOM_GCN, lambda name: f"{name}/geom_gcn", geom_gcn_preprocess=True),
        ("chameleon", "squirrel"),
    ),
    "PyG-Actor": _TenSplits(_OneGraph(pyg.Actor, GEOM_GCN, lambda name: ""), ("none",)),
    "PyG-HeterophilousGraphDataset": _TenSplits(
        _OneGraph(pyg.HeterophilousGraphDataset, ["raw/{folder}.npz"], lambda name: name.lower().replace("-", "_")),
        ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
    ),
    "PyG-Amazon": _Nodes(
        _OneGraph(pyg.Amazon, ["raw/amazon_electronics_{name}.npz"], str.capitalize), ("computers", "photo")
    ),
    "PyG-Coauthor": _Nodes(
        _OneGraph(pyg.Coauthor, ["raw/ms_academic_{name:.3}.npz"], {"cs": "CS", "physics": "Physics"}.__getitem__),
        ("cs", "physics"),
    ),
    "PyG-CityNetwork": _Nodes(_OneGraph(CityNetwork, ["raw/{name}.tar.gz"]), ("paris", "shanghai", "la", "london")),
    "PyG-GraphLandDataset": _Nodes(graphs.graphland, tuple(graphs.GRAPHLAND), tasks=graphs.GRAPHLAND, num_splits=3),
    "PyG-ShapeNet": Format(clouds.shapenet, ("all", *pyg.ShapeNet.category_ids), tasks=clouds.SHAPES),
    "PyG-S3DIS": Format(clouds.s3dis, _AREAS, tasks=classification("node", 13)),
    "Registered": Format(own.registered),
    "Files": Format(own.files),
}
"""Families of data sets by ``dataset.format``."""

OWN = ("Registered", "Files")
"""Formats of users' data, whose task the config gives."""

ONLY_FOR = {
    "use_node_attr": ("PyG-TUDataset",),
    "num_graphs": GENERATED,
    "num_nodes": GENERATED,
    "slic_compactness": ("PyG-VOCSuperpixels", "PyG-COCOSuperpixels", "PyG-LRGBDataset"),
}
"""Keys of ``dataset`` that only these formats have, and Files ignores: --data replaces the data of a config."""


def dataset_problems(data: DatasetConfig) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that are known without loading: names, keys of other formats, folders, splits."""
    if data.format not in FORMATS:
        choices = ", ".join(FORMATS)
        message = f"no family of data sets is called {data.format!r}; there are {choices}."
        return [("dataset.format", message + did_you_mean(data.format, FORMATS))]
    return [(f"dataset.{key}", message) for key, message in (*_name_problems(data), *_split_problems(data))]


def _name_problems(data: DatasetConfig) -> Iterator[tuple[str, str]]:
    for key, owners in ONLY_FOR.items():
        if getattr(data, key) != type(data).model_fields[key].default and data.format not in (*owners, "Files"):
            yield key, f"only {owners[0]} has it, and dataset.format is {data.format}"
    entry = FORMATS[data.format]
    if entry.names and plain_name(data) not in entry.names:
        message = f"{data.format} has no {data.name!r}; there are {', '.join(entry.names)}."
        yield "name", message + did_you_mean(data.name, entry.names)
    if Path(data.name).name != data.name or data.name in ("", ".", ".."):
        yield "name", f"must be a plain name (got {data.name!r})"
    folder = None if data.dir is None else Path(data.dir).expanduser()
    if data.format == "Files" and folder is None:
        yield "dir", "format Files needs the file or folder of the graphs, or --data PATH"
    if folder is not None and not folder.is_dir() and not (data.format == "Files" and folder.exists()):
        yield "dir", f"the data folder {data.dir} does not exist"
    if "Superpixels" in data.format and data.slic_compactness != 30:
        yield "slic_compactness", f"PyG has the superpixels of compactness 30 only (got {data.slic_compactness})"


def _split_problems(data: DatasetConfig) -> Iterator[tuple[str, str]]:
    mode, name, task = data.split_mode, data.name, possible_tasks(data)[0]
    has_none = name == "CSL" or data.format in WITHOUT_STANDARD_SPLIT
    num_splits = 0 if has_none else FORMATS[data.format].num_splits
    if mode == "standard" and num_splits == 0:
        yield "split_mode", f"{data.format} {name} has no standard split; use random or cv-kfold-10"
    elif mode == "standard" and data.split_index >= num_splits:
        yield "split_index", f"must be below the number of splits of {name}, {num_splits} (got {data.split_index})"
    if mode == "errica" and data.format != "PyG-TUDataset":
        yield "split_mode", f"errica's splits are for PyG-TUDataset (got {data.format})"
    if mode != "standard" and data.format == "PyG-GraphLandDataset":
        yield "split_mode", f"some nodes of {name} have no target; use standard, with split_index 0, 1 or 2"
    if mode != "standard" and name.startswith("ogbl-"):
        yield "split_mode", f"{name} is one graph with split edges; use standard"
    if data.num_folds is not None and is_one_graph(data):
        yield "split_mode", f"folds need several graphs, and {name} is one; use standard or random"
    if "stratified" in mode and task.kind not in ("binary", "multiclass"):
        yield "split_mode", f"stratified folds need classes, and the task is {task.kind}; use cv-kfold"


def plain_name(data: DatasetConfig) -> str:
    """The name in the spelling of the tables."""
    return {_spelled(name): name for name in FORMATS[data.format].names}.get(_spelled(data.name), data.name)


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


def possible_tasks(data: DatasetConfig) -> tuple[Task, ...]:
    """The tasks that the names allow, before loading; binary and multiclass if the number of classes is unknown."""
    entry = FORMATS[data.format]
    known = entry.tasks.get(plain_name(data)) if isinstance(entry.tasks, Mapping) else entry.tasks
    if known is not None:
        return (known,)
    level: Level = entry.level
    if data.format in OWN:
        level = "edge" if data.task == "link_pred" else data.task
    if data.task_type == "regression":
        return (Task(level, "regression", 1),)
    if data.format in OWN and data.task_type == "classification_multilabel":
        return (Task(level, "multilabel", 2),)
    if level == "edge":
        return (Task("edge", "binary", 1),)
    return classification(level, 2), classification(level, 3)


def level_of(data: DatasetConfig) -> Level:
    """What has a target: graphs, nodes or edges; known before loading."""
    return possible_tasks(data)[0].level


def is_one_graph(data: DatasetConfig) -> bool:
    """Whether the data set is one graph whose nodes are split."""
    return (
        FORMATS[data.format].level == "node"
        or (data.format in OWN and data.task == "node")
        or plain_name(data).startswith("ogbn-")
    )


def split_of(data: DatasetConfig) -> Split:
    """How a config divides its data, with the settings that its kind of split has."""
    used = {"standard": "", "fixed": "shares", "random": "shares seed", "errica": "folder"}.get(data.split_mode, "seed")
    keys = {"shares": "split", "seed": "split_seed", "folder": "split_dir"}
    return Split(data.split_mode, index=data.split_index, **{name: getattr(data, keys[name]) for name in used.split()})


def load_dataset(data: DatasetConfig) -> LoadedDataset:
    """Load the data set through its library's class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable, or a package is missing.
    """
    named = data.model_copy(update={"name": plain_name(data)})
    return FORMATS[data.format].load(named, possible_tasks(named)[0])
