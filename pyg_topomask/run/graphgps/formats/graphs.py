"""Data sets that PyG's own classes or ours read: sets of graphs, and single graphs whose nodes are classified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy.spatial import cKDTree
from torch_geometric import datasets as pyg
from torch_geometric.data import Data
from torch_geometric.datasets import S3DIS, ShapeNet
from torch_geometric.transforms import BaseTransform, Constant, LocalDegreeProfile
from torch_geometric.utils import one_hot

from pyg_topomask import __version__
from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.run.data.source import LoadedDataset, joined
from pyg_topomask.run.errors import need
from pyg_topomask.run.graphgps.formats.base import Raw, cached, from_parts, from_raw
from pyg_topomask.run.task import PARTS, Task, classification

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.config.dataset import DatasetConfig

CANVAS = {"plain": 8, "shifted": 16, "plain-positions": 8, "shifted-positions": 16}
"""Side of the canvas of handwritten digits by name; with positions, rows and columns are features, too."""


PLANETOID = [f"raw/ind.{{name}}.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")]
GRAPHLAND = dict.fromkeys(
    ("tolokers-2", "city-reviews", "artnet-exp", "web-fraud", "hm-categories", "pokec-regions", "web-topics")
) | dict.fromkeys(
    ("hm-prices", "avazu-ctr", "city-roads-M", "city-roads-L", "twitch-views", "artnet-views", "web-traffic"),
    Task("node", "regression", 1),
)
"""Data sets of GraphLand, with the task if it is not the number of classes in the data."""
GEOM_GCN = ["raw/out1_node_feature_label.txt", "raw/out1_graph_edges.txt"]


def generated(cls: Any, data: DatasetConfig, task: Task) -> LoadedDataset:
    """A data set of ours, which is generated in the number and size that the config gives."""
    arguments = [*([] if data.name == "none" else [data.name]), data.num_graphs, data.num_nodes]
    folder = "-".join(map(str, [*arguments, f"v{__version__}"]))
    return LoadedDataset(cached(Path(cls.__name__, folder), lambda root: cls(root, *arguments)), task)


def digits(data: DatasetConfig, task: Task) -> LoadedDataset:
    """Handwritten digits as grids of pixels; they come with scikit-learn."""
    need("sklearn.datasets", "PyG-DigitsDataset")
    side = CANVAS[data.name]
    dataset = cached(Path("DigitsDataset", f"{side}-v{__version__}"), lambda root: DigitsDataset(root, side))
    dataset.transform = _append_one_hot_position if data.name.endswith("positions") else None
    return LoadedDataset(dataset, task)


def _append_one_hot_position(data: Data) -> Data:
    """Append the one-hot row and column of each pixel to the features: a linear encoder adds a vector for each."""
    data.x = torch.cat([data.x, *map(one_hot, data.pos.long().unbind(1))], dim=1)
    return data


def tu(data: DatasetConfig, task: Task) -> LoadedDataset:
    """TU data sets; they have no split of their own."""
    is_regression = task.kind == "regression"
    target = "graph_attributes" if is_regression else "graph_labels"
    raw = Raw("TUDataset", data.name, tuple(f"raw/{data.name}_{part}.txt" for part in ("A", "graph_indicator", target)))
    build = partial(pyg.TUDataset, name=data.name, use_node_attr=data.use_node_attr)
    dataset = from_raw(raw, data, lambda root: _fitting(build(root)))
    if is_regression:
        return LoadedDataset(dataset, Task("graph", "regression", int(dataset[0].y.numel())))
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def _fitting(dataset: pyg.TUDataset) -> pyg.TUDataset:
    """Refuse raw files that do not fit each other, which PyG reads without an error."""
    for graph in dataset:
        graph.validate()
    return dataset


def benchmark(data: DatasetConfig, task: Task) -> LoadedDataset:
    """GNNBenchmarkDataset; the features of superpixels are their intensity and position."""
    name, family = data.name, "GNNBenchmarkDataset"
    if name == "CSL":
        raw = Raw(family, name, ("raw/graphs_Kary_Deterministic_Graphs.pkl", "raw/y_Kary_Deterministic_Graphs.pt"))
        return LoadedDataset(from_raw(raw, data, lambda root: pyg.GNNBenchmarkDataset(root, name)), task)
    transform = _append_position if name in ("MNIST", "CIFAR10") else None
    raw = Raw(family, name, (f"raw/{name}_v2.pt",))
    return from_parts(raw, data, task, lambda root, part: pyg.GNNBenchmarkDataset(root, name, part, transform))


def _append_position(data: Data) -> Data:
    """Append positions to the features, as in GraphGPS."""
    data.x = torch.cat([data.x.float().view(data.num_nodes, -1), data.pos.float()], dim=1)
    del data.pos
    return data


def zinc(data: DatasetConfig, task: Task) -> LoadedDataset:
    """ZINC: ``subset`` of 12,000 molecules, or ``full``."""
    raw = Raw("ZINC", "", tuple(f"raw/{part}.{kind}" for part in PARTS for kind in ("pickle", "index")))
    return from_parts(raw, data, task, lambda root, part: pyg.ZINC(root, data.name == "subset", part), key=data.name)


def aqsol(data: DatasetConfig, task: Task) -> LoadedDataset:
    """AQSOL: solubility of molecules."""
    raw = Raw("AQSOL", "", tuple(f"raw/{name}.pickle" for name in (*PARTS, "atom_dict", "bond_dict")))
    return from_parts(raw, data, task, pyg.AQSOL)


def malnet(data: DatasetConfig, task: Task) -> LoadedDataset:
    """MalNetTiny; its nodes have no features, and the name chooses those that are added."""
    raw = Raw("MalNetTiny", "", ("raw/malnet-graphs-tiny", "raw/split_info_tiny/type"))
    transform = LocalDegreeProfile() if data.name == "LocalDegreeProfile" else Constant(cat=False)
    return from_parts(raw, data, task, lambda root, part: pyg.MalNetTiny(root, part, transform))


def one_graph(
    cls: Any,
    files: Sequence[str],
    data: DatasetConfig,
    task: Task,
    subfolder: Callable[[str], str] = str,
    **arguments: Any,
) -> LoadedDataset:
    """A data set of a single graph.

    Args:
        cls: PyG's class, which takes a root and, unless ``subfolder`` is empty, a name.
        files: Its raw files; ``{name}`` stands for the name in lower case, ``{folder}`` for ``subfolder``.
        data: The config.
        task: Not used: the data have the number of classes.
        subfolder: Its folder below the root, by name.
        **arguments: Further arguments of the class.
    """
    folder, lower = subfolder(data.name), data.name.lower()
    raw = Raw(cls.__name__, folder, tuple(file.format(name=lower, folder=folder) for file in files))
    name = [data.name] if folder else []
    dataset = from_raw(raw, data, lambda root: cls(root, *name, **arguments))
    graph = dataset[0]
    graph.y = graph.y.view(-1)
    return LoadedDataset([graph], classification("node", int(dataset.num_classes)))


def graphland(data: DatasetConfig, task: Task) -> LoadedDataset:
    """GraphLand. Split 0 trains on 10 % of the nodes (RL), 1 on 50 % (RH), and 2 on the oldest 50 % (TH)."""
    for package in ("pandas", "sklearn.preprocessing"):
        need(package, data.format)
    split = ("RL", "RH", "TH")[data.split_index]
    files = "info.yaml", "features.csv", "targets.csv", "edgelist.csv", f"split_masks_{split}.csv"
    raw = Raw("GraphLandDataset", data.name, tuple(f"raw/{data.name}/{file}" for file in files))
    read = from_raw(raw, data, lambda root: pyg.GraphLandDataset(root, data.name, split), key=split)[0]
    graph = Data(x=read.x, edge_index=read.edge_index, y=read.y)
    if task.kind != "regression":  # a node without a class is in none of the masks
        graph.y = read.y.nan_to_num(0).long()
        task = classification("node", int(graph.y.max()) + 1)
    for part in PARTS:
        graph[f"{part}_mask"] = read[f"{part}_mask"][:, None] & (torch.arange(3) == data.split_index)
    return LoadedDataset([graph], task)


class CityNetwork(pyg.CityNetwork):
    """Unpacks a local archive instead of downloading it; PyG's class unpacks only files that it downloads."""

    @property
    def raw_dir(self) -> str:
        return str(Path(self.root, self.name, "unpacked"))

    def download(self) -> None:
        self.download_path = str(Path(self.root, self.name, "raw", f"{self.name}.tar.gz"))
        if not Path(self.download_path).exists():
            super().download()


SHAPES = classification(
    "node", 50, part_labels=tuple(tuple(labels) for labels in map(ShapeNet.seg_classes.get, ShapeNet.category_ids))
)
"""Task of ShapeNet-Part."""


class NearestNeighbors(BaseTransform):
    """Adds edges from the nearest points to each point, and appends the position to the features ``x``."""

    def __init__(self, num_neighbors: int) -> None:
        self.num_neighbors = num_neighbors

    def forward(self, data: Data) -> Data:
        count = min(self.num_neighbors + 1, int(data.num_nodes))
        near = torch.from_numpy(cKDTree(data.pos.numpy()).query(data.pos.numpy(), k=[*range(1, count + 1)])[1])
        source, target = near.reshape(-1).long(), torch.arange(int(data.num_nodes)).repeat_interleave(count)
        data.edge_index = torch.stack([source, target])[:, source != target]
        data.x = data.pos if data.x is None else torch.cat([data.x.float(), data.pos.float()], dim=1)
        del data.pos
        return data


def shapenet(data: DatasetConfig, task: Task) -> LoadedDataset:
    """ShapeNet-Part: 50 part labels of 16 categories; the name is ``all`` or a category. k-MIP takes 8 neighbours."""
    name, near = None if data.name == "all" else data.name, NearestNeighbors(8)
    if name is not None:  # PyG numbers the categories that are read, so a single one has the number 0
        task = replace(task, part_labels=(tuple(ShapeNet.seg_classes[name]),))
    raw = Raw("ShapeNet", "", (*(f"raw/{folder}" for folder in ShapeNet.category_ids.values()), "raw/train_test_split"))
    build = lambda root, part: ShapeNet(root, name, split=part, pre_transform=near)  # noqa: E731
    return from_parts(raw, data, task, build, data.name)


def s3dis(data: DatasetConfig, task: Task) -> LoadedDataset:
    """S3DIS: 13 classes; the name ``Area_5`` gives the test area, and every tenth other block is for validation.

    Points have 32 neighbours, as in PointViG, arXiv:2407.00921.
    """
    need("h5py", "S3DIS")
    area, near = int(data.name[-1]), NearestNeighbors(32)
    raw = Raw("S3DIS", "", ("raw/all_files.txt", "raw/room_filelist.txt"))
    build = lambda root: [S3DIS(root, area, train, pre_transform=near) for train in (True, False)]  # noqa: E731
    others, tested = from_raw(raw, data, build, data.name)
    is_val = torch.arange(len(others)) % 10 == 9
    graphs, parts = joined([others[~is_val], others[is_val], tested])
    return LoadedDataset(graphs, task, parts)
