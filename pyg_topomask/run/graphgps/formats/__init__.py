"""Data sets by ``dataset.format`` and ``dataset.name``, in GraphGPS's spelling, each through its library's class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch_geometric import datasets as pyg

from pyg_topomask import datasets as ours
from pyg_topomask.run.data.source import LoadedDataset
from pyg_topomask.run.graphgps.formats import graphs, ogb, own
from pyg_topomask.run.graphgps.formats.graphs import GEOM_GCN, PLANETOID, CityNetwork, one_graph
from pyg_topomask.run.task import Level, Task, classification

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.config.dataset import DatasetConfig


@dataclass(frozen=True)
class Format:
    """A family of data sets.

    Args:
        load: Loads one of them, given its config and its task as far as it is known before.
        names: Their names, which a config may spell in any case and with ``_`` for ``-``; any name if empty.
        level: What has a target, graphs or nodes, if no task is known.
        tasks: Task by name, or of all names.
        num_splits: Number of splits of their own.
    """

    load: "Callable[[DatasetConfig, Task], LoadedDataset]"
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
_TenSplits, _NoSplit = partial(_Nodes, num_splits=10), partial(_Nodes, num_splits=0)

FORMATS: dict[str, Format] = {
    "OGB": Format(ogb.load, tuple(ogb.TASKS), tasks=ogb.TASKS),
    "PyG-LRGBDataset": Format(ogb.lrgb, tuple(ogb.LRGB), tasks=ogb.LRGB),
    "PyG-VOCSuperpixels": Format(partial(ogb.lrgb, name="pascalvoc-sp"), _SUPERPIXELS, tasks=ogb.LRGB["pascalvoc-sp"]),
    "PyG-COCOSuperpixels": Format(partial(ogb.lrgb, name="coco-sp"), _SUPERPIXELS, tasks=ogb.LRGB["coco-sp"]),
    "PyG-GNNBenchmarkDataset": Format(graphs.benchmark, tuple(_BENCHMARK), tasks=_BENCHMARK),
    "PyG-ZINC": Format(graphs.zinc, ("subset", "full"), tasks=_NUMBER),
    "PyG-AQSOL": Format(graphs.aqsol, ("none",), tasks=_NUMBER),
    "PyG-MalNetTiny": Format(graphs.malnet, _MALNET, tasks=classification("graph", 5)),
    "PyG-TUDataset": Format(graphs.tu, num_splits=0),
    "PyG-MotifDataset": Format(_Ours(ours.MotifDataset), tuple(ours.MOTIFS), tasks=_BINARY, num_splits=0),
    "PyG-InducedCycleDataset": Format(_Ours(ours.InducedCycleDataset), ("none",), tasks=_BINARY, num_splits=0),
    "PyG-LongRangeDataset": Format(_Ours(ours.LongRangeDataset), ours.LONG_RANGE, tasks=_LONG_RANGE, num_splits=0),
    "PyG-DigitsDataset": Format(graphs.digits, tuple(graphs.CANVAS), tasks=_TEN_CLASSES, num_splits=0),
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
    "PyG-Amazon": _NoSplit(
        _OneGraph(pyg.Amazon, ["raw/amazon_electronics_{name}.npz"], str.capitalize), ("computers", "photo")
    ),
    "PyG-Coauthor": _NoSplit(
        _OneGraph(pyg.Coauthor, ["raw/ms_academic_{name:.3}.npz"], {"cs": "CS", "physics": "Physics"}.__getitem__),
        ("cs", "physics"),
    ),
    "PyG-CityNetwork": _Nodes(_OneGraph(CityNetwork, ["raw/{name}.tar.gz"]), ("paris", "shanghai", "la", "london")),
    "PyG-GraphLandDataset": _Nodes(graphs.graphland, tuple(graphs.GRAPHLAND), tasks=graphs.GRAPHLAND, num_splits=3),
    "PyG-ShapeNet": Format(graphs.shapenet, ("all", *pyg.ShapeNet.category_ids), tasks=graphs.SHAPES),
    "PyG-S3DIS": Format(graphs.s3dis, _AREAS, tasks=classification("node", 13)),
    "Registered": Format(own.registered),
    "Files": Format(own.files),
}
"""Families of data sets by ``dataset.format``."""


def load_dataset(data: "DatasetConfig") -> LoadedDataset:
    """Load the data set through its library's class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable, or a package is missing.
    """
    named = data.model_copy(update={"name": data.plain_name})
    return FORMATS[data.format].load(named, named.tasks[0])
