"""Data sets of a single graph whose nodes are classified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import (
    Actor,
    Amazon,
    CityNetwork,
    Coauthor,
    HeterophilousGraphDataset,
    Planetoid,
    WebKB,
    WikipediaNetwork,
)

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_raw
from pyg_topomask.run.task import classification


@dataclass(frozen=True)
class OneGraph:
    """Loads a data set of a single graph through PyG's class.

    Args:
        cls: The class.
        raw: Raw files of the data set with a given name.
        build: Makes the data set, given its root and name; ``cls(root, name)`` if :obj:`None`.
    """

    cls: type[InMemoryDataset]
    raw: Callable[[str], Raw]
    build: Callable[[str, str], InMemoryDataset] | None = None

    def __call__(self, data: DatasetConfig) -> LoadedDataset:
        """The graph, with its masks and classes."""
        build = self.build or self.cls
        dataset = from_raw(self.raw(data.name), data, lambda root: build(str(root), data.name))
        graph = dataset[0]
        graph.y = graph.y.view(-1)
        return LoadedDataset([graph], classification("node", int(dataset.num_classes)))


_PLANETOID = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_GEOM = ("raw/out1_node_feature_label.txt", "raw/out1_graph_edges.txt")


def _heterophilous(name: str) -> Raw:
    folder = name.lower().replace("-", "_")
    return Raw("HeterophilousGraphDataset", folder, (f"raw/{folder}.npz",))


def _coauthor(name: str) -> Raw:
    folder = {"cs": "CS", "physics": "Physics"}[name.lower()]
    return Raw("Coauthor", folder, (f"raw/ms_academic_{folder[:3].lower()}.npz",))


planetoid = OneGraph(
    Planetoid, lambda name: Raw("Planetoid", name, tuple(f"raw/ind.{name.lower()}.{part}" for part in _PLANETOID))
)
webkb = OneGraph(WebKB, lambda name: Raw("WebKB", name.lower(), _GEOM))
wikipedia = OneGraph(
    WikipediaNetwork,
    lambda name: Raw("WikipediaNetwork", name.lower(), tuple(f"geom_gcn/{file}" for file in _GEOM)),
    lambda root, name: WikipediaNetwork(root, name, geom_gcn_preprocess=True),
)
actor = OneGraph(Actor, lambda name: Raw("Actor", "", _GEOM), lambda root, name: Actor(root))
heterophilous = OneGraph(HeterophilousGraphDataset, _heterophilous)
amazon = OneGraph(
    Amazon, lambda name: Raw("Amazon", name.capitalize(), (f"raw/amazon_electronics_{name.lower()}.npz",))
)
coauthor = OneGraph(Coauthor, _coauthor)


def city(data: DatasetConfig) -> LoadedDataset:
    """Paris, Shanghai, Los Angeles (la) and London with their split."""
    name = data.name.lower()
    raw = Raw("CityNetwork", name, (f"raw/{name}.tar.gz",))
    archive = raw.find(data)[0]

    class LocalCity(CityNetwork):
        """Unpacks a local archive instead of downloading it; PyG's class unpacks only files that it downloads."""

        def download(self) -> None:
            if archive is None:
                super().download()
            else:
                self.download_path = str(archive / raw.files[0])

        @property
        def raw_dir(self) -> str:
            return str(Path(self.root) / self.name / "unpacked")

    return OneGraph(CityNetwork, lambda _: raw, lambda root, _: LocalCity(root, name))(data)
