"""Sets of graphs that PyG's own classes read: molecules, superpixels, function call graphs, TU data, ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import AQSOL, ZINC, GNNBenchmarkDataset, MalNetTiny, TUDataset
from torch_geometric.transforms import BaseTransform, Constant, LocalDegreeProfile
from torch_geometric.utils import one_hot

from pyg_topomask import __version__
from pyg_topomask.datasets import DigitsDataset, InducedCycleDataset, LongRangeDataset, MotifDataset
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, cached, from_parts, from_raw, need
from pyg_topomask.run.task import PARTS, Task, classification

BENCHMARK = {
    "MNIST": classification("graph", 10),
    "CIFAR10": classification("graph", 10),
    "PATTERN": classification("node", 2),
    "CLUSTER": classification("node", 6),
    "CSL": classification("graph", 10),
}
"""Data sets of *Benchmarking Graph Neural Networks* (Dwivedi et al., arXiv:2003.00982) and their tasks."""

MOLECULE = Task("graph", "regression", 1)
"""Task of ZINC and AQSOL."""

CALLS = classification("graph", 5)
"""Task of MalNetTiny."""


CANVAS = {"plain": 8, "shifted": 16, "plain-positions": 8, "shifted-positions": 16}
"""Side of the canvas of handwritten digits by name; with positions, rows and columns are features, too."""

DIGIT = classification("graph", 10)
"""Task of handwritten digits."""

LONG_RANGE_TASKS = {
    "share": Task("node", "regression", 1),
    "tree": classification("node", 10),
    "ring": Task("node", "regression", 1),
}
"""Tasks of `LongRangeDataset` by name."""


def motif(data: DatasetConfig) -> LoadedDataset:
    """Our planted motifs; they are generated."""
    sizes = data.num_graphs, data.num_nodes
    dataset = _generated(f"MotifDataset/{data.name}-", lambda root: MotifDataset(root, data.name, *sizes, seed=0), data)
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def induced_cycle(data: DatasetConfig) -> LoadedDataset:
    """Our induced cycles; they are generated."""
    sizes = data.num_graphs, data.num_nodes
    dataset = _generated("InducedCycleDataset/", lambda root: InducedCycleDataset(root, *sizes, seed=0), data)
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def long_range(data: DatasetConfig) -> LoadedDataset:
    """Our node tasks of several hops; they are generated."""
    sizes = data.num_graphs, data.num_nodes
    dataset = _generated(f"LongRangeDataset/{data.name}-", lambda root: LongRangeDataset(root, data.name, *sizes), data)
    return LoadedDataset(dataset, LONG_RANGE_TASKS[data.name])


def digits(data: DatasetConfig) -> LoadedDataset:
    """Handwritten digits as grids of pixels; they come with scikit-learn."""
    need("sklearn.datasets", "PyG-DigitsDataset")
    side = CANVAS[data.name]
    dataset = cached(Path("DigitsDataset") / f"{side}-v{__version__}", lambda root: DigitsDataset(str(root), side))
    dataset.transform = _OneHotPosition(side) if data.name.endswith("positions") else None
    return LoadedDataset(dataset, DIGIT)


class _OneHotPosition(BaseTransform):
    """Appends the one-hot row and column of each pixel to the features: a linear encoder adds a vector for each."""

    def __init__(self, side: int) -> None:
        self.place = one_hot(torch.arange(side**2) // side), one_hot(torch.arange(side**2) % side)

    def forward(self, data: Data) -> Data:
        data.x = torch.cat([data.x, *self.place], dim=1)
        return data


def _generated(prefix: str, build: Callable[[str], InMemoryDataset], data: DatasetConfig) -> InMemoryDataset:
    folder = Path(f"{prefix}{data.num_graphs}-{data.num_nodes}-v{__version__}")
    return cached(folder, lambda root: build(str(root)))


def tu(data: DatasetConfig) -> LoadedDataset:
    """TU data sets; they have no split of their own."""
    target = "graph_attributes" if data.task_type == "regression" else "graph_labels"
    files = tuple(f"raw/{data.name}_{part}.txt" for part in ("A", "graph_indicator", target))
    dataset = from_raw(
        Raw("TUDataset", data.name, files),
        data,
        lambda root: TUDataset(str(root), data.name, use_node_attr=data.use_node_attr),
    )
    if data.task_type == "regression":
        return LoadedDataset(dataset, Task("graph", "regression", int(dataset[0].y.numel())))
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def benchmark(data: DatasetConfig) -> LoadedDataset:
    """GNNBenchmarkDataset; the features of superpixels are their intensity and position."""
    name = data.name
    files = ("raw/graphs_Kary_Deterministic_Graphs.pkl", "raw/y_Kary_Deterministic_Graphs.pt")
    raw = Raw("GNNBenchmarkDataset", name, files if name == "CSL" else (f"raw/{name}_v2.pt",))
    if name == "CSL":
        dataset = from_raw(raw, data, lambda root: GNNBenchmarkDataset(str(root), name))
        return LoadedDataset(dataset, BENCHMARK[name])
    transform = _ConcatenatePosition() if name in ("MNIST", "CIFAR10") else None
    return from_parts(raw, data, lambda root, split: GNNBenchmarkDataset(root, name, split, transform), BENCHMARK[name])


class _ConcatenatePosition(BaseTransform):
    """Appends positions to the features, as in GraphGPS."""

    def forward(self, data: Data) -> Data:
        data.x = torch.cat([data.x.float().view(data.num_nodes, -1), data.pos.float()], dim=1)
        del data.pos
        return data


def zinc(data: DatasetConfig) -> LoadedDataset:
    """ZINC: ``subset`` of 12,000 molecules, or ``full``."""
    raw = Raw("ZINC", "", tuple(f"raw/{split}.{kind}" for split in PARTS for kind in ("pickle", "index")))
    subset = data.name == "subset"
    return from_parts(raw, data, lambda root, split: ZINC(root, subset, split), MOLECULE, key=data.name)


def aqsol(data: DatasetConfig) -> LoadedDataset:
    """AQSOL: solubility of molecules."""
    raw = Raw("AQSOL", "", tuple(f"raw/{name}.pickle" for name in (*PARTS, "atom_dict", "bond_dict")))
    return from_parts(raw, data, AQSOL, MOLECULE)


def malnet(data: DatasetConfig) -> LoadedDataset:
    """MalNetTiny; its nodes have no features, and the name chooses those that are added."""
    raw = Raw("MalNetTiny", "", ("raw/malnet-graphs-tiny", "raw/split_info_tiny/type"))
    transform = LocalDegreeProfile() if data.name == "LocalDegreeProfile" else Constant(cat=False)
    return from_parts(raw, data, lambda root, split: MalNetTiny(root, split, transform), CALLS)
