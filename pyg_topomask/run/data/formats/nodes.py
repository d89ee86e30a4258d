"""Single graphs whose nodes are classified, and point clouds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import (
    S3DIS,
    Actor,
    Amazon,
    CityNetwork,
    Coauthor,
    HeterophilousGraphDataset,
    Planetoid,
    ShapeNet,
    WebKB,
    WikipediaNetwork,
)
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_raw, joined, need
from pyg_topomask.run.task import classification

NUM_NEIGHBORS = {"ShapeNet": 8, "S3DIS": 32}
"""Nearest neighbours that a point of a cloud has edges from, as k-MIP's authors have it, after PointViG,
arXiv:2407.00921."""

SHAPES = classification(
    "node", 50, part_labels=tuple(tuple(labels) for labels in map(ShapeNet.seg_classes.get, ShapeNet.category_ids))
)
"""Task of ShapeNet-Part."""

ROOMS = classification("node", 13)
"""Task of S3DIS."""

GEOM_FILES = ("out1_node_feature_label.txt", "out1_graph_edges.txt")


def _single(raw: Raw, data: DatasetConfig, build: Callable[[Path], InMemoryDataset]) -> LoadedDataset:
    dataset = from_raw(raw, data, build)
    graph = dataset[0]
    graph.y = graph.y.view(-1)
    return LoadedDataset([graph], classification("node", int(dataset.num_classes)))


def planetoid(data: DatasetConfig) -> LoadedDataset:
    """Cora, CiteSeer, PubMed with their public split."""
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"raw/ind.{data.name.lower()}.{part}" for part in parts)
    return _single(Raw("Planetoid", data.name, files), data, lambda root: Planetoid(str(root), data.name))


def webkb(data: DatasetConfig) -> LoadedDataset:
    """Cornell, Texas, Wisconsin with their ten splits."""
    files = tuple(f"raw/{name}" for name in GEOM_FILES)
    return _single(Raw("WebKB", data.name.lower(), files), data, lambda root: WebKB(str(root), data.name))


def wikipedia(data: DatasetConfig) -> LoadedDataset:
    """Chameleon, Squirrel with their ten splits."""
    files = tuple(f"geom_gcn/raw/{name}" for name in GEOM_FILES)
    raw = Raw("WikipediaNetwork", data.name.lower(), files)
    return _single(raw, data, lambda root: WikipediaNetwork(str(root), data.name, geom_gcn_preprocess=True))


def actor(data: DatasetConfig) -> LoadedDataset:
    """Actor with its ten splits."""
    return _single(Raw("Actor", "", tuple(f"raw/{name}" for name in GEOM_FILES)), data, lambda root: Actor(str(root)))


def heterophilous(data: DatasetConfig) -> LoadedDataset:
    """Roman-empire, Amazon-ratings, Minesweeper, Tolokers, Questions with their ten splits."""
    place = data.name.lower().replace("-", "_")
    raw = Raw("HeterophilousGraphDataset", place, (f"raw/{place}.npz",))
    return _single(raw, data, lambda root: HeterophilousGraphDataset(str(root), data.name))


def amazon(data: DatasetConfig) -> LoadedDataset:
    """Computers, Photo; no split of their own."""
    raw = Raw("Amazon", data.name.capitalize(), (f"raw/amazon_electronics_{data.name.lower()}.npz",))
    return _single(raw, data, lambda root: Amazon(str(root), data.name))


def coauthor(data: DatasetConfig) -> LoadedDataset:
    """CS, Physics; no split of their own."""
    name = {"cs": "CS", "physics": "Physics"}[data.name.lower()]
    raw = Raw("Coauthor", name, (f"raw/ms_academic_{name[:3].lower()}.npz",))
    return _single(raw, data, lambda root: Coauthor(str(root), name))


def city(data: DatasetConfig) -> LoadedDataset:
    """Paris, Shanghai, Los Angeles (la), London with their split."""
    raw = Raw("CityNetwork", data.name.lower(), (f"raw/{data.name.lower()}.tar.gz",))
    archive = raw.find(data)[0]

    class LocalCity(CityNetwork):
        """Unpacks an archive that is there instead of downloading it; PyG's class unpacks only what it downloads."""

        def download(self) -> None:
            if archive is None:
                super().download()
            else:
                self.download_path = str(archive / raw.files[0])

        @property
        def raw_dir(self) -> str:
            return str(Path(self.root) / self.name / "unpacked")

    return _single(raw, data, lambda root: LocalCity(str(root), data.name.lower()))


class NearestNeighbors(BaseTransform):
    """Edges from the nearest points, by a tree; ``x`` becomes the features with the position to the right."""

    def __init__(self, num_neighbors: int) -> None:
        self.num_neighbors = num_neighbors

    def forward(self, data: Data) -> Data:
        from scipy.spatial import cKDTree

        number = int(data.num_nodes)
        count = min(self.num_neighbors + 1, number)
        _, near = cKDTree(data.pos.numpy()).query(data.pos.numpy(), k=[*range(1, count + 1)])
        source, target = torch.from_numpy(near).reshape(-1).long(), torch.arange(number).repeat_interleave(count)
        keep = source != target
        data.edge_index = torch.stack([source[keep], target[keep]])
        data.x = data.pos if data.x is None else torch.cat([data.x.float(), data.pos.float()], dim=1)
        del data.pos
        return data


def shapenet(data: DatasetConfig) -> LoadedDataset:
    """ShapeNet-Part: 50 part labels of 16 categories; the name is ``all`` or a category."""
    categories = None if data.name.lower() == "all" else data.name
    near = NUM_NEIGHBORS["ShapeNet"]
    files = (*(f"raw/{folder}" for folder in ShapeNet.category_ids.values()), "raw/train_test_split")
    datasets = from_raw(
        Raw("ShapeNet", "", files),
        data,
        lambda root: [
            ShapeNet(str(root), categories, split=split, pre_transform=NearestNeighbors(near))
            for split in ("train", "val", "test")
        ],
        key=f"{data.name}-{near}",
    )
    graphs, parts = joined(datasets)
    return LoadedDataset(graphs, SHAPES, parts)


def s3dis(data: DatasetConfig) -> LoadedDataset:
    """S3DIS: 13 classes; the name ``Area_5`` is the test area, every tenth other block is for validation."""
    need("h5py", "S3DIS")
    area, near = int(data.name[-1]), NUM_NEIGHBORS["S3DIS"]
    neighbors = NearestNeighbors(near)
    datasets = from_raw(
        Raw("S3DIS", "", ("raw/all_files.txt", "raw/room_filelist.txt")),
        data,
        lambda root: [S3DIS(str(root), area, train=train, pre_transform=neighbors) for train in (True, False)],
        key=f"{data.name}-{near}",
    )
    block = torch.arange(len(datasets[0]))
    train, val = datasets[0][block[block % 10 != 9]], datasets[0][block[block % 10 == 9]]
    graphs, parts = joined([train, val, datasets[1]])
    return LoadedDataset(graphs, ROOMS, parts)
