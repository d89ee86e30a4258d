"""Data sets by ``dataset.format`` and ``dataset.name``, in GraphGPS's spelling, each through its library's class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch_geometric.datasets import ShapeNet

from pyg_topomask.datasets import LONG_RANGE, MOTIFS
from pyg_topomask.run.config.dataset import GENERATED, DatasetConfig
from pyg_topomask.run.data.formats import clouds, graphs, lrgb, nodes, ogb
from pyg_topomask.run.data.formats.base import LoadedDataset
from pyg_topomask.run.errors import did_you_mean
from pyg_topomask.run.task import Level, Task, classification

__all__ = [
    "FORMATS",
    "Format",
    "LoadedDataset",
    "dataset_problems",
    "is_one_graph",
    "level_of",
    "load_dataset",
    "possible_tasks",
]


@dataclass(frozen=True)
class Format:
    """A family of data sets.

    Args:
        load: Loads one of them.
        names: Their names; any name if empty.
        level: What has a target, graphs or nodes, if no task is known.
        tasks: Task by name, or of all names under the empty name, with what is known before loading.
        num_splits: Number of splits of their own.
        any_case: Whether names may be spelled in any case.
    """

    load: Callable[[DatasetConfig], LoadedDataset]
    names: tuple[str, ...] = ()
    level: Level = "graph"
    tasks: Mapping[str, Task] = field(default_factory=dict)
    num_splits: int = 1
    any_case: bool = False


_SUPERPIXELS = ("edge_wt_region_boundary",)
_VOC, _COCO = partial(lrgb.lrgb, name="pascalvoc-sp"), partial(lrgb.lrgb, name="coco-sp")
_BINARY = {"": classification("graph", 2)}
_OneSplit = partial(Format, level="node")
_TenSplits = partial(Format, level="node", num_splits=10)
_HETEROPHILOUS = ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions")

FORMATS: dict[str, Format] = {
    "OGB": Format(ogb.load, ogb.NAMES, tasks=ogb.TASKS),
    "PyG-LRGBDataset": Format(lrgb.lrgb, tuple(lrgb.LRGB), tasks=lrgb.LRGB, any_case=True),
    "PyG-VOCSuperpixels": Format(_VOC, _SUPERPIXELS, tasks={"": lrgb.LRGB["pascalvoc-sp"]}),
    "PyG-COCOSuperpixels": Format(_COCO, _SUPERPIXELS, tasks={"": lrgb.LRGB["coco-sp"]}),
    "PyG-GNNBenchmarkDataset": Format(graphs.benchmark, tuple(graphs.BENCHMARK), tasks=graphs.BENCHMARK),
    "PyG-ZINC": Format(graphs.zinc, ("subset", "full"), tasks={"": graphs.MOLECULE}),
    "PyG-AQSOL": Format(graphs.aqsol, ("none",), tasks={"": graphs.MOLECULE}),
    "PyG-MalNetTiny": Format(graphs.malnet, ("LocalDegreeProfile", "Constant", "none"), tasks={"": graphs.CALLS}),
    "PyG-TUDataset": Format(graphs.tu, num_splits=0),
    "PyG-MotifDataset": Format(graphs.motif, tuple(MOTIFS), tasks=_BINARY, num_splits=0),
    "PyG-InducedCycleDataset": Format(graphs.induced_cycle, ("none",), tasks=_BINARY, num_splits=0),
    "PyG-LongRangeDataset": Format(graphs.long_range, LONG_RANGE, tasks=graphs.LONG_RANGE_TASKS, num_splits=0),
    "PyG-DigitsDataset": Format(graphs.digits, tuple(graphs.CANVAS), tasks={"": graphs.DIGIT}, num_splits=0),
    "PyG-Planetoid": _OneSplit(nodes.planetoid, ("Cora", "CiteSeer", "PubMed")),
    "PyG-WebKB": _TenSplits(nodes.webkb, ("cornell", "texas", "wisconsin"), any_case=True),
    "PyG-WikipediaNetwork": _TenSplits(nodes.wikipedia, ("chameleon", "squirrel")),
    "PyG-Actor": _TenSplits(nodes.actor, ("none",)),
    "PyG-HeterophilousGraphDataset": _TenSplits(nodes.heterophilous, _HETEROPHILOUS, any_case=True),
    "PyG-Amazon": Format(nodes.amazon, ("computers", "photo"), level="node", num_splits=0, any_case=True),
    "PyG-Coauthor": Format(nodes.coauthor, ("cs", "physics"), level="node", num_splits=0, any_case=True),
    "PyG-CityNetwork": _OneSplit(nodes.city, ("paris", "shanghai", "la", "london"), any_case=True),
    "PyG-ShapeNet": Format(clouds.shapenet, ("all", *ShapeNet.category_ids), tasks={"": clouds.SHAPES}),
    "PyG-S3DIS": Format(clouds.s3dis, tuple(f"Area_{i}" for i in range(1, 7)), tasks={"": clouds.ROOMS}),
}
"""Families of data sets by ``dataset.format``."""

_ONLY_FOR = {
    "use_node_attr": ("PyG-TUDataset",),
    "num_graphs": GENERATED,
    "num_nodes": GENERATED,
    "slic_compactness": ("PyG-VOCSuperpixels", "PyG-COCOSuperpixels", "PyG-LRGBDataset"),
}
"""Keys of ``dataset`` that only these formats have."""


def dataset_problems(data: DatasetConfig) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that are known without loading: names, keys of other formats, folders, splits."""
    if data.format not in FORMATS:
        choices = ", ".join(FORMATS)
        message = f"no family of data sets is called {data.format!r}; there are {choices}."
        return [("dataset.format", message + did_you_mean(data.format, FORMATS))]
    return [*_key_problems(data), *_name_problems(data), *_split_problems(data)]


def _key_problems(data: DatasetConfig) -> Iterator[tuple[str, str]]:
    for name, owners in _ONLY_FOR.items():
        if getattr(data, name) != type(data).model_fields[name].default and data.format not in owners:
            yield f"dataset.{name}", f"only {owners[0]} has it, and dataset.format is {data.format}"


def _name_problems(data: DatasetConfig) -> Iterator[tuple[str, str]]:
    entry = FORMATS[data.format]
    names = [name.lower() for name in entry.names] if entry.any_case else entry.names
    if names and plain_name(data) not in names:
        message = f"{data.format} has no {data.name!r}; there are {', '.join(entry.names)}."
        yield "dataset.name", message + did_you_mean(data.name, entry.names)
    if Path(data.name).name != data.name or data.name in ("", ".", ".."):
        yield "dataset.name", f"must be a plain name (got {data.name!r})"
    if data.dir is not None and not Path(data.dir).expanduser().is_dir():
        yield "dataset.dir", f"the data folder {data.dir} does not exist"
    if "Superpixels" in data.format and data.slic_compactness != 30:
        message = f"PyG has the superpixels of compactness 30 only (got {data.slic_compactness})"
        yield "dataset.slic_compactness", message


def _split_problems(data: DatasetConfig) -> Iterator[tuple[str, str]]:
    mode, name, task = data.split_mode, data.name, possible_tasks(data)[0]
    num_splits = 0 if name == "CSL" else FORMATS[data.format].num_splits
    if mode == "standard" and num_splits == 0:
        yield "dataset.split_mode", f"{data.format} {name} has no standard split; use random or cv-kfold-10"
    elif mode == "standard" and data.split_index >= num_splits:
        yield (
            "dataset.split_index",
            f"must be below the number of splits of {name}, {num_splits} (got {data.split_index})",
        )
    if mode == "errica" and data.format != "PyG-TUDataset":
        yield "dataset.split_mode", f"errica's splits are for PyG-TUDataset (got {data.format})"
    if mode != "standard" and task.hits_at is not None:
        yield "dataset.split_mode", f"{name} is one graph with split edges; use standard"
    if data.num_folds is not None and is_one_graph(data):
        yield "dataset.split_mode", f"folds need several graphs, and {name} is one; use standard or random"
    if "stratified" in mode and task.kind not in ("binary", "multiclass"):
        yield "dataset.split_mode", f"stratified folds need classes, and the task is {task.kind}; use cv-kfold"


def plain_name(data: DatasetConfig) -> str:
    """The name in the spelling of the tables."""
    name = data.name.lower() if FORMATS[data.format].any_case else data.name
    return name.replace("_", "-") if data.format == "OGB" and name.startswith("ogb") else name


def possible_tasks(data: DatasetConfig) -> tuple[Task, ...]:
    """The tasks that the names allow, before loading; binary and multiclass if the number of classes is unknown."""
    entry = FORMATS[data.format]
    known = entry.tasks.get(plain_name(data), entry.tasks.get(""))
    if known is not None:
        return (known,)
    if data.task_type == "regression":
        return (Task(entry.level, "regression", 1),)
    return classification(entry.level, 2), classification(entry.level, 3)


def level_of(data: DatasetConfig) -> Level:
    """What has a target: graphs, nodes or edges; known before loading."""
    return possible_tasks(data)[0].level


def is_one_graph(data: DatasetConfig) -> bool:
    """Whether the data set is one graph whose nodes are split."""
    return FORMATS[data.format].level == "node" or plain_name(data).startswith("ogbn-")


def load_dataset(data: DatasetConfig) -> LoadedDataset:
    """Load the data set through its library's class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable, or a package is missing.
    """
    return FORMATS[data.format].load(data)
