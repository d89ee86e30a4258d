"""Point clouds whose points are classified, as graphs of nearest neighbours."""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.spatial import cKDTree
from torch_geometric.data import Data
from torch_geometric.datasets import S3DIS, ShapeNet
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.data.loaded import LoadedDataset, joined
from pyg_topomask.run.errors import need
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.formats.base import Raw, from_parts, from_raw
from pyg_topomask.run.task import Task, classification

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
    return from_parts(
        raw, data, task, lambda root, part: ShapeNet(root, name, split=part, pre_transform=near), data.name
    )


def s3dis(data: DatasetConfig, task: Task) -> LoadedDataset:
    """S3DIS: 13 classes; the name ``Area_5`` gives the test area, and every tenth other block is for validation.

    Points have 32 neighbours, as in PointViG, arXiv:2407.00921.
    """
    need("h5py", "S3DIS")
    area, near = int(data.name[-1]), NearestNeighbors(32)
    raw = Raw("S3DIS", "", ("raw/all_files.txt", "raw/room_filelist.txt"))
    others, tested = from_raw(
        raw, data, lambda root: [S3DIS(root, area, train, pre_transform=near) for train in (True, False)], data.name
    )
    is_val = torch.arange(len(others)) % 10 == 9
    graphs, parts = joined([others[~is_val], others[is_val], tested])
    return LoadedDataset(graphs, task, parts)
