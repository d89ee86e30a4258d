"""Point clouds whose points are classified, as graphs of nearest neighbours."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch_geometric.data import Data
from torch_geometric.datasets import S3DIS, ShapeNet
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_parts, from_raw, joined, need
from pyg_topomask.run.task import classification

NUM_NEIGHBORS = {"ShapeNet": 8, "S3DIS": 32}
"""Number of nearest neighbours of a point, as in k-MIP's experiments and in PointViG, arXiv:2407.00921."""

SHAPES = classification(
    "node", 50, part_labels=tuple(tuple(labels) for labels in map(ShapeNet.seg_classes.get, ShapeNet.category_ids))
)
"""Task of ShapeNet-Part."""

ROOMS = classification("node", 13)
"""Task of S3DIS."""


class NearestNeighbors(BaseTransform):
    """Adds edges from the nearest points to each point, and appends the position to the features ``x``."""

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
    # PyG numbers the categories that are read, so a single one has the number 0.
    task = SHAPES if categories is None else replace(SHAPES, part_labels=(tuple(ShapeNet.seg_classes[categories]),))
    raw = Raw("ShapeNet", "", (*(f"raw/{folder}" for folder in ShapeNet.category_ids.values()), "raw/train_test_split"))
    neighbors = NearestNeighbors(near)
    return from_parts(
        raw,
        data,
        lambda root, split: ShapeNet(root, categories, split=split, pre_transform=neighbors),
        task,
        key=f"{data.name}-{near}",
    )


def s3dis(data: DatasetConfig) -> LoadedDataset:
    """S3DIS: 13 classes; the name ``Area_5`` gives the test area, and every tenth other block is for validation."""
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
