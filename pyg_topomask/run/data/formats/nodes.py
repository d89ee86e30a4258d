"""Data sets of a single graph whose nodes are classified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch_geometric import datasets as pyg

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_raw
from pyg_topomask.run.task import Task, classification

PLANETOID = [f"raw/ind.{{name}}.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")]
GEOM_GCN = ["raw/out1_node_feature_label.txt", "raw/out1_graph_edges.txt"]


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


class CityNetwork(pyg.CityNetwork):
    """Unpacks a local archive instead of downloading it; PyG's class unpacks only files that it downloads."""

    @property
    def raw_dir(self) -> str:
        return str(Path(self.root, self.name, "unpacked"))

    def download(self) -> None:
        self.download_path = str(Path(self.root, self.name, "raw", f"{self.name}.tar.gz"))
        if not Path(self.download_path).exists():
            super().download()
