"""Data sets of users: those that a module registers, and files that PyG or ``torch.save`` left."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data, InMemoryDataset

from pyg_topomask.data import DiskGraph, GraphSource, mapped
from pyg_topomask.datasets import REGISTERED
from pyg_topomask.run.data.source import LoadedDataset, as_dataset
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.graphgps.formats.base import reading
from pyg_topomask.run.task import PARTS, Task
from pyg_topomask.tensor_files import load_tensors

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.config.dataset import DatasetConfig


def registered(data: "DatasetConfig", task: Task) -> LoadedDataset:
    """``format: Registered``: what a function of :func:`~pyg_topomask.datasets.register_dataset` returns."""
    load = REGISTERED.get(data.name)
    if load is None:
        names = ", ".join(REGISTERED) or "none; start with topomask --import MODULE, which calls register_dataset"
        hint = did_you_mean(data.name, REGISTERED)
        raise RunError(f"dataset.name: no data set is registered as {data.name!r}; there are {names}.{hint}")
    return _as_given(load(data.dir) if signature(load).parameters else load(), data, task)


def files(data: "DatasetConfig", task: Task) -> LoadedDataset:
    """``format: Files``: a file of graphs, or the folder of an ``InMemoryDataset`` or a graph, at ``dataset.dir``."""
    path = Path(data.dir or ".").expanduser()
    if DiskGraph.is_at(path):
        with reading(str(path), "Make the folder again: save_graph() or save_edges()"):
            return as_dataset(_on_disk(path), task)
    found = [path] if path.is_file() else []
    for folder in (path / "processed", path):
        parts = [folder / f"{part}.pt" for part in PARTS]
        saved = sorted(set(folder.glob("*.pt")) - {folder / f"{name}.pt" for name in ("pre_filter", "pre_transform")})
        found = found or (parts if all(part.is_file() for part in parts) else saved)
    is_split = [file.stem for file in found] == list(PARTS)
    if len(found) != 1 and not is_split:
        names = ", ".join(file.name for file in found) or "no such file"
        raise RunError(f"dataset.dir: {path} must have one file *.pt, or train.pt, val.pt and test.pt (got {names})")
    sets = [read_graphs(file) for file in found]
    return _as_given(tuple(sets) if is_split else sets[0], data, task)


def _as_given(found: Any, data: "DatasetConfig", task: Task) -> LoadedDataset:
    """The data set. Raises RunError if another split would mix its three sets."""
    if isinstance(found, tuple) and data.split_mode != "standard":
        message = f"{data.split_mode} would mix the training, validation and test sets of {data.name}"
        raise RunError(f"dataset.split_mode: {message}; use standard, or give all graphs as one list")
    return as_dataset(found, task)


def _on_disk(path: Path) -> Data:
    """A graph on disk, whose edges and features stay there. All of it is read once, to find damage before training."""
    graph, needed = DiskGraph(path), ("x", "y", *(f"{part}_mask" for part in PARTS))
    graph.verify()
    GraphSource(graph).check_rows()
    given = {name: str(graph.arrays[name].dtype).removeprefix("torch.") for name in (*graph.of_nodes, *graph.of_edges)}
    floats = {given.get("x"), given.get("edge_attr", "float32")}
    if floats != {"float32"} or not given.keys() >= {*needed}:
        names = f"{', '.join(needed)}, with x, and edge_attr if there is one, in float32"
        raise RunError(f"dataset.dir: {path} must have the arrays {names} (got {given})")
    return mapped(graph)


def read_graphs(file: Path) -> Sequence[Data]:
    """The graphs of a file: a ``Data``, a list of them, or what ``InMemoryDataset.save`` writes.

    Raises:
        RunError: If the file is something else, or damaged.
    """
    with reading(str(file), "Write the graphs again: torch.save(list_of_data, FILE)"):
        content = load_tensors(file)
    if isinstance(content, tuple) and len(content) in (2, 3):
        dataset = InMemoryDataset()
        dataset.slices = content[1] or None
        dataset.data = Data.from_dict(content[0]) if isinstance(content[0], dict) else content[0]
        content = [dataset.get(number) for number in range(dataset.len())]
    graphs = [content] if isinstance(content, Data) else content
    if not isinstance(graphs, list) or not graphs or not all(isinstance(graph, Data) for graph in graphs):
        raise RunError(f"{file} must hold a Data or a list of them (got {type(content).__name__})")
    return graphs
