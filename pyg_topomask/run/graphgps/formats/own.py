"""Data sets of users: those that a module registers, and files that PyG or ``torch.save`` left."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from pyg_topomask.data.disk import HEADER, DiskGraph
from pyg_topomask.data.source import GraphSource, mapped
from pyg_topomask.datasets.registry import REGISTERED
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.formats.base import LoadedDataset, joined, reading
from pyg_topomask.run.task import PARTS, Task, classification
from pyg_topomask.tensor_files import load_tensors


def registered(data: DatasetConfig, task: Task) -> LoadedDataset:
    """``format: Registered``: what a function of :func:`~pyg_topomask.datasets.register_dataset` returns."""
    load = REGISTERED.get(data.name)
    if load is None:
        names = ", ".join(REGISTERED) or "none; start with topomask --import MODULE, which calls register_dataset"
        hint = did_you_mean(data.name, REGISTERED)
        raise RunError(f"dataset.name: no data set is registered as {data.name!r}; there are {names}.{hint}")
    return _loaded(load(data.dir) if signature(load).parameters else load(), data, task)


def files(data: DatasetConfig, task: Task) -> LoadedDataset:
    """``format: Files``: a file of graphs, or the folder of an ``InMemoryDataset`` or a graph, at ``dataset.dir``."""
    path = Path(data.dir or ".").expanduser()
    if (path / HEADER).is_file():
        with reading(str(path), "Make the folder again: save_graph() or save_edges()"):
            return _loaded(_on_disk(path), data, task)
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
    return _loaded(tuple(sets) if is_split else sets[0], data, task)


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
        dataset.data, dataset.slices = content[0], content[1] or None
        dataset.data = Data.from_dict(content[0]) if isinstance(content[0], dict) else content[0]
        content = [dataset.get(number) for number in range(dataset.len())]
    graphs = [content] if isinstance(content, Data) else content
    if not isinstance(graphs, list) or not graphs or not all(isinstance(graph, Data) for graph in graphs):
        raise RunError(f"{file} must hold a Data or a list of them (got {type(content).__name__})")
    return graphs


def _loaded(found: Any, data: DatasetConfig, task: Task) -> LoadedDataset:
    """The data set with its own split, if it has one, and the task that its targets show."""
    parts = None
    if isinstance(found, tuple) and len(found) == 3:
        found, parts = joined([[part] if isinstance(part, Data) else part for part in found])
    graphs = [found] if isinstance(found, Data) else found
    first = graphs[0] if hasattr(graphs, "__getitem__") and len(graphs) else None
    if not isinstance(first, Data):
        raise RunError(
            f"dataset: there must be a Data, or a list of them that is not empty (got {type(found).__name__})"
        )
    shapes = set()
    for number, graph in enumerate(graphs):
        _check(graph, number, task)
        shapes.add(None if graph.x is None else tuple(graph.x.shape[1:]))
    if len(shapes) > 1:
        raise RunError(f"dataset: nodes of all graphs need as many features 'x' (got rows of shape {shapes})")
    if task.kind in ("regression", "multilabel"):
        return LoadedDataset(
            graphs, Task(task.level, task.kind, max(1, first[task.target_name].numel() // task.count(first))), parts
        )
    if task.level == "edge":
        return LoadedDataset(graphs, task, parts)
    most = max(int(graph[task.target_name].max()) for graph in graphs)
    return LoadedDataset(graphs, classification(task.level, max(2, most + 1)), parts)


def _check(graph: Data, number: int, task: Task) -> None:
    """Refuse a graph whose attributes are not numbers in memory, or whose targets are no classes. Raises RunError."""
    target = graph.get(task.target_name)
    if target is None:
        raise RunError(
            f"dataset.task: graphs need {task.target_name!r}, the targets of each {task.level}; graph {number} has none"
        )
    for name in ("x", "edge_attr", "edge_index", task.target_name):
        value, wanted = graph.get(name), "integers [2, E]" if name == "edge_index" else "a dense tensor of real numbers"
        fits = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if fits and name == "edge_index":
            fits = value.dtype in (torch.int64, torch.int32)
        if value is not None and not (fits and not value.is_quantized and not value.is_complex()):
            got = f"{value.dtype}, {value.layout}, on {value.device}" if isinstance(value, Tensor) else repr(value)[:80]
            raise RunError(f"dataset: {name!r} of graph {number} must be {wanted} (got {got})")
    if task.kind in ("binary", "multiclass") and not (target.numel() and bool(target.isfinite().all())):
        raise RunError(f"dataset: {task.target_name!r} of graph {number} must hold classes 0, 1, … (got none, or NaN)")
