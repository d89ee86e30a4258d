"""What the generated data sets share: a seeded generator for each graph and the file on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from pyg_topomask.checks import check_integer


class SyntheticDataset(InMemoryDataset):
    r"""Graphs that are a function of a seed, kept in one processed file.

    A subclass states its ``settings`` and builds graph ``i`` in :meth:`generate`. The file's name holds every setting,
    a digest of ``pre_transform`` and the version of the format, so that two data sets never share a file; it is
    written under another name and then renamed, so that a broken run leaves no half of it.

    Args:
        root: Folder of the ``processed`` folder.
        settings: What the graphs depend on, in the order in which the file's name shows it.
        num_graphs: Number of graphs, at least 2 (half of them positive).
        seed: Non-negative. Graph ``i`` depends on ``seed``, ``i`` and the settings alone, not on ``num_graphs``.
        transform: Applied at each access.
        pre_transform: Applied once, before saving.

    Raises:
        ValueError: If ``num_graphs`` or ``seed`` is out of range.
        TypeError: If one of the sizes or the seed is no integer.
    """

    version = 1

    def __init__(
        self,
        root: str,
        settings: dict[str, int | str],
        num_graphs: int,
        seed: int,
        transform: Callable | None = None,
        pre_transform: Callable | None = None,
    ) -> None:
        self.settings = {**settings, "num_graphs": num_graphs, "seed": seed}
        num_graphs = check_integer("num_graphs", num_graphs, 2, "half of the graphs are positive, half negative")
        seed = check_integer("seed", seed, 0, "numpy's generators take no negative seed")
        super().__init__(root, transform, pre_transform)
        path = Path(self.processed_paths[0])
        if not path.exists():
            self._write(path)
        self.load(str(path))

    @property
    def raw_file_names(self) -> list[str]:
        return []

    @property
    def processed_file_names(self) -> list[str]:
        parts = [type(self).__name__, *map(str, self.settings.values()), f"v{self.version}"]
        if self.pre_transform is not None:
            parts.append(hashlib.sha256(describe(self.pre_transform).encode()).hexdigest()[:12])
        return ["-".join(parts) + ".pt"]

    def generate(self, rng: np.random.Generator, positive: bool) -> Data:
        """One graph, labelled 1 where ``positive``. Every draw comes from ``rng``."""
        raise TypeError(f"{type(self).__name__} must define 'generate'")

    def _write(self, path: Path) -> None:
        graphs = []
        for i in range(int(self.settings["num_graphs"])):
            rng = np.random.default_rng([int(self.settings["seed"]), i])
            data = self.generate(rng, positive=i % 2 == 1)
            graphs.append(data if self.pre_transform is None else self.pre_transform(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self.save(graphs, str(part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def both_ways(row: np.ndarray, col: np.ndarray, num_nodes: int) -> np.ndarray:
    """``edge_index [2, 2E]`` of the undirected edges ``row, col [E]`` (each once, no loops), coalesced."""
    source, target = np.concatenate([row, col]), np.concatenate([col, row])
    order = np.argsort(source * num_nodes + target)
    return np.stack([source[order], target[order]])


def to_data(edge_index: np.ndarray, x: np.ndarray, positive: bool) -> Data:
    """The arrays as a graph with ``y [1]``."""
    return Data(
        x=torch.from_numpy(x.astype(np.float32)),
        edge_index=torch.from_numpy(edge_index.astype(np.int64)),
        y=torch.tensor([int(positive)]),
    )


def describe(value: Any) -> str:
    """Text that two transforms share only if their code and settings are equal, the same in every process.

    PyG's own comparison takes ``repr``, which most transforms leave at their class name, so a changed setting would
    go unseen and an old file be read.

    Raises:
        TypeError: If something in it has no state to tell it by, such as a generator of random numbers.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"array({value.dtype},{value.shape},{hashlib.sha256(value.tobytes()).hexdigest()})"
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{describe(k)}:{describe(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(describe, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted(map(describe, value))) + "}"
    if isinstance(value, partial):
        return f"partial({describe([value.func, value.args, value.keywords])})"
    if isinstance(value, CodeType):
        return f"code({value.co_code.hex()},{describe([*value.co_names, *value.co_consts])})"
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, PurePath, range, slice)):
        return f"{type(value).__qualname__}({value!r})"
    name = f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if hasattr(value, "__code__"):  # a function, or a method with its object
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, held, getattr(value, "__self__", None)]
        return f"{name}({describe(parts)})"
    if isinstance(value, (type, BuiltinFunctionType)):
        return name
    slots = [slot for cls in type(value).__mro__ for slot in getattr(cls, "__slots__", ())]
    if not slots and not hasattr(value, "__dict__"):
        raise TypeError(f"one {name} in 'pre_transform' cannot be told from another: leave it out")
    state = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    return f"{name}({describe(state | getattr(value, '__dict__', {}))})"
