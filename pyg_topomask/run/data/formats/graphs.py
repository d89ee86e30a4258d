"""Sets of graphs that PyG's own classes read: molecules, superpixels, function call graphs, TU data, ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.datasets import (
    AQSOL,
    ZINC,
    GNNBenchmarkDataset,
    MalNetTiny,
    TUDataset,
)
from torch_geometric.transforms import BaseTransform, Constant, LocalDegreeProfile

from pyg_topomask import __version__
from pyg_topomask.datasets import InducedCycleDataset, MotifDataset
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, cached, from_raw, joined
from pyg_topomask.run.task import Task, classification

SPLITS = ("train", "val", "test")
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


def motif(data: DatasetConfig) -> LoadedDataset:
    """Our planted motifs; no raw files."""
    name = f"{data.name}-{data.num_graphs}-{data.num_nodes}-v{__version__}"
    return _generated(
        Path("MotifDataset") / name,
        lambda root: MotifDataset(str(root), data.name, data.num_graphs, data.num_nodes, seed=0),
    )


def induced_cycle(data: DatasetConfig) -> LoadedDataset:
    """Our induced cycles; no raw files."""
    name = f"{data.num_graphs}-{data.num_nodes}-v{__version__}"
    return _generated(
        Path("InducedCycleDataset") / name,
        lambda root: InducedCycleDataset(str(root), data.num_graphs, data.num_nodes, seed=0),
    )


def _generated(place: Path, build: Callable[[Path], InMemoryDataset]) -> LoadedDataset:
    dataset = cached(place, build)
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def tu(data: DatasetConfig) -> LoadedDataset:
    """TU data sets; no split of their own."""
    files = tuple(f"raw/{data.name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels"))
    dataset = from_raw(
        Raw("TUDataset", data.name, files),
        data,
        lambda root: TUDataset(str(root), data.name, use_node_attr=data.use_node_attr),
    )
    if data.task_type == "regression":
        return LoadedDataset(dataset, Task("graph", "regression", int(dataset[0].y.numel())))
    return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)))


def benchmark(data: DatasetConfig) -> LoadedDataset:
    """GNNBenchmarkDataset; superpixels get intensity and position as their features."""
    name = data.name
    with_position = name in ("MNIST", "CIFAR10")
    files = ("raw/graphs_Kary_Deterministic_Graphs.pkl", "raw/y_Kary_Deterministic_Graphs.pt")
    raw = Raw("GNNBenchmarkDataset", name, files if name == "CSL" else (f"raw/{name}_v2.pt",))
    splits = SPLITS if name != "CSL" else ("train",)

    def build(root: Path) -> Sequence[InMemoryDataset]:
        return [GNNBenchmarkDataset(str(root), name, split) for split in splits]

    datasets = from_raw(raw, data, build)
    if with_position:
        for dataset in datasets:
            dataset.transform = _ConcatenatePosition()
    if name == "CSL":
        return LoadedDataset(datasets[0], BENCHMARK[name])
    graphs, parts = joined(datasets)
    return LoadedDataset(graphs, BENCHMARK[name], parts)


class _ConcatenatePosition(BaseTransform):
    """Positions to the right of the features, as GraphGPS has it."""

    def forward(self, data: Data) -> Data:
        data.x = torch.cat([data.x.float().view(data.num_nodes, -1), data.pos.float()], dim=1)
        del data.pos
        return data


def zinc(data: DatasetConfig) -> LoadedDataset:
    """ZINC: ``subset`` of 12,000 molecules, or ``full``."""
    files = tuple(f"raw/{split}.{kind}" for split in SPLITS for kind in ("pickle", "index"))
    graphs, parts = joined(
        from_raw(
            Raw("ZINC", "", files),
            data,
            lambda root: [ZINC(str(root), subset=data.name == "subset", split=split) for split in SPLITS],
            key=data.name,
        )
    )
    return LoadedDataset(graphs, MOLECULE, parts)


def aqsol(data: DatasetConfig) -> LoadedDataset:
    """AQSOL: solubility of molecules."""
    names = ("train.pickle", "val.pickle", "test.pickle", "atom_dict.pickle", "bond_dict.pickle")
    graphs, parts = joined(
        from_raw(
            Raw("AQSOL", "", tuple(f"raw/{name}" for name in names)),
            data,
            lambda root: [AQSOL(str(root), split=split) for split in SPLITS],
        )
    )
    return LoadedDataset(graphs, MOLECULE, parts)


def malnet(data: DatasetConfig) -> LoadedDataset:
    """MalNetTiny; the name says which features its nodes, which have none, are given."""
    raw = Raw("MalNetTiny", "", ("raw/malnet-graphs-tiny", "raw/split_info_tiny/type"))
    datasets = from_raw(raw, data, lambda root: [MalNetTiny(str(root), split=split) for split in SPLITS])
    for dataset in datasets:
        dataset.transform = LocalDegreeProfile() if data.name == "LocalDegreeProfile" else Constant(cat=False)
    graphs, parts = joined(datasets)
    return LoadedDataset(graphs, CALLS, parts)
