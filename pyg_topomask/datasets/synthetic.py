"""Base of the generated data sets: a seeded generator for each graph, and the file on disk."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from pyg_topomask.cache import replacing
from pyg_topomask.checks import check_integer
from pyg_topomask.fingerprint import stable_hash
from pyg_topomask.tensor_files import UnreadableFileError, load_tensors


class SyntheticDataset(InMemoryDataset):
    r"""Graphs that are generated from a seed and stored in one processed file.

    A subclass sets its ``settings`` and builds graph ``i`` in :meth:`graph`. The file's name contains every
    setting, a hash of ``pre_transform`` and torch's default dtype, and the version of the format, so that two data sets
    never share a file.

    Args:
        root: Folder that contains the ``processed`` folder.
        settings: Settings that the graphs depend on, in the order of the file's name.
        num_graphs: Number of graphs, at least 1.
        seed: Non-negative. Graph ``i`` depends only on ``seed``, ``i`` and the settings, not on ``num_graphs``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving; with
            ``force_reload=True``, graphs are made and saved again.

    Raises:
        ValueError: If ``num_graphs`` or ``seed`` is out of range.
        TypeError: If one of the sizes or the seed is not an integer, or there is a ``pre_filter``.
    """

    version = 1

    def __init__(
        self, root: str, settings: dict[str, int | str], num_graphs: int, seed: int, **transforms: Callable | None
    ) -> None:
        if transforms.get("pre_filter") is not None:
            raise TypeError(f"{type(self).__name__} takes no 'pre_filter': choose graphs by dataset[[0, 2, …]]")
        self.settings = {**settings, "num_graphs": num_graphs, "seed": seed}
        num_graphs = check_integer("num_graphs", num_graphs, 1)
        seed = check_integer("seed", seed, 0, "numpy's generators do not accept negative seeds")
        super().__init__(root, **transforms)
        path = Path(self.processed_paths[0])
        if self.force_reload or not path.exists():
            self._write(path)
        self.load(str(path))

    @property
    def processed_file_names(self) -> list[str]:
        parts = [type(self).__name__, *map(str, self.settings.values()), f"v{self.version}"]
        if self.pre_transform is not None:
            parts.append(stable_hash(self.pre_transform, torch.get_default_dtype())[:12])
        return ["-".join(parts) + ".pt"]

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        """Graph ``number``. Every draw must come from ``rng``, its own random generator."""
        raise NotImplementedError(f"{type(self).__name__} must define 'graph'")

    def load(self, path: str, data_cls: type[Data] = Data) -> None:
        """Load the graphs like PyG's method, but without executing code that the file refers to.

        Raises:
            UnreadableFileError: If the file is damaged or does not contain the graphs.
        """
        found, count = load_tensors(Path(path)), int(self.settings["num_graphs"])
        try:
            data, self.slices, _ = found
            self.data = data_cls.from_dict(data)
            self.get(count - 1).edge_index.size(1)  # of the last graph
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            raise UnreadableFileError(f"{path} does not hold {count} graphs; delete it") from None

    def _write(self, path: Path) -> None:
        graphs = []
        for i in range(int(self.settings["num_graphs"])):
            rng = np.random.default_rng([int(self.settings["seed"]), i])
            data = self.graph(i, rng)
            graphs.append(data if self.pre_transform is None else self.pre_transform(data))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            self.save(graphs, str(part))


def both_ways(row: np.ndarray, col: np.ndarray, num_nodes: int) -> np.ndarray:
    """Coalesced ``edge_index [2, 2E]`` of the undirected edges ``row, col [E]`` (without repeated edges or loops)."""
    source, target = np.concatenate([row, col]), np.concatenate([col, row])
    order = np.argsort(source * num_nodes + target)
    return np.stack([source[order], target[order]])


def nearest_neighbors(points: np.ndarray, k: int) -> np.ndarray:
    """Coalesced ``edge_index [2, E]``, int64, of the ``k`` nearest other points of each point ``[N, d]``, both ways."""
    size = len(points)
    found = cKDTree(points).query(points, k + 1)[1]
    itself = found == np.arange(size)[:, None]
    itself[~itself.any(axis=1), -1] = True  # more than k points are equal to this one, which was not found
    near = found[~itself].reshape(size, k)
    pairs = np.unique(np.sort(np.stack([np.arange(size).repeat(k), near.ravel()]), axis=0), axis=1)
    return both_ways(pairs[0], pairs[1], size).astype(np.int64)


def to_data(edge_index: np.ndarray, x: np.ndarray, y: Tensor) -> Data:
    """Graph of the arrays, with float32 features."""
    return Data(x=torch.from_numpy(x).float(), edge_index=torch.from_numpy(edge_index).long(), y=y)
