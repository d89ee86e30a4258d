"""Data sets by ``dataset.format`` and ``dataset.name``, in GraphGPS's spelling, each through its library's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch_geometric.datasets import ShapeNet

from pyg_topomask.datasets import MOTIFS
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats import graphs, lrgb, nodes, ogb
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
        names: Their names; any if empty.
        level: What has a target, graphs or nodes, where no task is known.
        tasks: Task by name, or of all under the empty name, as far as it is known before loading.
        num_splits: Number of splits of their own.
        source: Where they come from, for the list of names.
        any_case: Whether names may be spelled in any case.
        generated: Whether there are no raw files.
    """

    load: Callable[[DatasetConfig], LoadedDataset]
    names: tuple[str, ...] = ()
    level: Level = "graph"
    tasks: Mapping[str, Task] = field(default_factory=dict)
    num_splits: int = 1
    source: str = "PyG"
    any_case: bool = False
    generated: bool = False


_SUPERPIXELS = ("edge_wt_region_boundary",)
_YES_OR_NO = {"": classification("graph", 2)}

FORMATS: dict[str, Format] = {
    "OGB": Format(ogb.load, ogb.NAMES, tasks=ogb.TASKS, source="ogb; LRGB: PyG"),
    "PyG-LRGBDataset": Format(lrgb.lrgb_by_name, tuple(lrgb.LRGB), tasks=lrgb.LRGB, any_case=True),
    "PyG-VOCSuperpixels": Format(lrgb.voc_superpixels, _SUPERPIXELS, tasks={"": lrgb.LRGB["pascalvoc-sp"]}),
    "PyG-COCOSuperpixels": Format(lrgb.coco_superpixels, _SUPERPIXELS, tasks={"": lrgb.LRGB["coco-sp"]}),
    "PyG-GNNBenchmarkDataset": Format(graphs.benchmark, tuple(graphs.BENCHMARK), tasks=graphs.BENCHMARK),
    "PyG-ZINC": Format(graphs.zinc, ("subset", "full"), tasks={"": graphs.MOLECULE}),
    "PyG-AQSOL": Format(graphs.aqsol, ("none",), tasks={"": graphs.MOLECULE}),
    "PyG-MalNetTiny": Format(graphs.malnet, ("LocalDegreeProfile", "Constant", "none"), tasks={"": graphs.CALLS}),
    "PyG-TUDataset": Format(graphs.tu, num_splits=0),
    "PyG-MotifDataset": Format(
        graphs.motif, tuple(MOTIFS), tasks=_YES_OR_NO, num_splits=0, source="ours", generated=True
    ),
    "PyG-InducedCycleDataset": Format(
        graphs.induced_cycle, ("none",), tasks=_YES_OR_NO, num_splits=0, source="ours", generated=True
    ),
    "PyG-Planetoid": Format(nodes.planetoid, ("Cora", "CiteSeer", "PubMed"), level="node"),
    "PyG-WebKB": Format(nodes.webkb, ("cornell", "texas", "wisconsin"), level="node", num_splits=10, any_case=True),
    "PyG-WikipediaNetwork": Format(nodes.wikipedia, ("chameleon", "squirrel"), level="node", num_splits=10),
    "PyG-Actor": Format(nodes.actor, ("none",), level="node", num_splits=10),
    "PyG-HeterophilousGraphDataset": Format(
        nodes.heterophilous,
        ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
        level="node",
        num_splits=10,
        any_case=True,
    ),
    "PyG-Amazon": Format(nodes.amazon, ("computers", "photo"), level="node", num_splits=0, any_case=True),
    "PyG-Coauthor": Format(nodes.coauthor, ("cs", "physics"), level="node", num_splits=0, any_case=True),
    "PyG-CityNetwork": Format(nodes.city, ("paris", "shanghai", "la", "london"), level="node", any_case=True),
    "PyG-ShapeNet": Format(nodes.shapenet, ("all", *ShapeNet.category_ids), tasks={"": nodes.SHAPES}),
    "PyG-S3DIS": Format(nodes.s3dis, tuple(f"Area_{i}" for i in range(1, 7)), tasks={"": nodes.ROOMS}),
}
"""``dataset.format`` -> family."""


def dataset_problems(data: DatasetConfig) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that can be told without loading: unknown names, a missing folder."""
    if data.format not in FORMATS:
        choices = ", ".join(FORMATS)
        message = f"no family of data sets is called {data.format!r}; there are {choices}."
        return [("dataset.format", message + did_you_mean(data.format, FORMATS))]
    entry, found = FORMATS[data.format], []
    names = [name.lower() for name in entry.names] if entry.any_case else list(entry.names)
    name = _plain_name(data)
    if names and name not in names:
        message = f"{data.format} has no {data.name!r}; there are {', '.join(entry.names)}."
        found.append(("dataset.name", message + did_you_mean(data.name, entry.names)))
    if Path(data.name).name != data.name or data.name in ("", ".", ".."):
        found.append(("dataset.name", f"must be a plain name (got {data.name!r})"))
    if data.dir is not None and not Path(data.dir).expanduser().is_dir():
        found.append(("dataset.dir", f"the data folder {data.dir} does not exist"))
    if "Superpixels" in data.format and data.slic_compactness != 30:
        found.append(
            (
                "dataset.slic_compactness",
                f"PyG has the superpixels of compactness 30 only (got {data.slic_compactness})",
            )
        )
    return [*found, *_split_problems(data, entry)]


def _split_problems(data: DatasetConfig, entry: Format) -> list[tuple[str, str]]:
    found, mode = [], data.split_mode
    num_splits = 0 if data.name == "CSL" else entry.num_splits
    if mode == "standard" and num_splits == 0:
        found.append(
            ("dataset.split_mode", f"{data.format} {data.name} has no standard split; use random or cv-kfold-10")
        )
    elif mode == "standard" and data.split_index >= num_splits:
        found.append(("dataset.split_index", f"{data.name} has {num_splits} of its own (got {data.split_index})"))
    if mode == "errica" and data.format != "PyG-TUDataset":
        found.append(("dataset.split_mode", f"errica's splits are of PyG-TUDataset (got {data.format})"))
    task = possible_tasks(data)[0]
    if mode != "standard" and task.hits_at is not None:
        found.append(("dataset.split_mode", f"{data.name} is one graph whose edges come split; use standard"))
    if data.num_folds is not None and is_one_graph(data):
        found.append(("dataset.split_mode", f"folds are of graphs, and {data.name} is one; use standard or random"))
    if "stratified" in mode and task.kind not in ("binary", "multiclass"):
        found.append(
            ("dataset.split_mode", f"stratified folds need classes, and the task is {task.kind}; use cv-kfold")
        )
    return found


def _plain_name(data: DatasetConfig) -> str:
    """The name as it stands in the tables."""
    name = data.name.lower() if FORMATS[data.format].any_case else data.name
    return name.replace("_", "-") if data.format == "OGB" and name.startswith("ogb") else name


def possible_tasks(data: DatasetConfig) -> tuple[Task, ...]:
    """What may be predicted, as far as names tell before loading; two classes or more where their number is open."""
    entry = FORMATS[data.format]
    known = entry.tasks.get(_plain_name(data), entry.tasks.get(""))
    if known is not None:
        return (known,)
    if data.task_type == "regression":
        return (Task(entry.level, "regression", 1),)
    return classification(entry.level, 2), classification(entry.level, 3)


def level_of(data: DatasetConfig) -> Level:
    """What has a target, graphs, nodes or edges: known from the names, before loading."""
    return possible_tasks(data)[0].level


def is_one_graph(data: DatasetConfig) -> bool:
    """Whether nodes of one graph are the items that are split."""
    return FORMATS[data.format].level == "node" or _plain_name(data).startswith("ogbn-")


def load_dataset(data: DatasetConfig) -> LoadedDataset:
    """The data set, through its library's own class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable, or a package is missing.
    """
    return FORMATS[data.format].load(data)
