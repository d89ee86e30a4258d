"""Data sets of the Long Range Graph Benchmark, through PyG's class; one of them also in OGB's layout."""

from __future__ import annotations

from torch_geometric.datasets import LRGBDataset

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_raw, joined
from pyg_topomask.run.data.formats.negatives import ResampleNegatives
from pyg_topomask.run.data.formats.ogb_files import open_dataset, three_parts
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Task, classification

SPLITS = ("train", "val", "test")
LRGB = {
    "peptides-func": Task("graph", "multilabel", 10),
    "peptides-struct": Task("graph", "regression", 11),
    "pascalvoc-sp": classification("node", 21),
    "coco-sp": classification("node", 81),
    "pcqm-contact": Task("edge", "binary", 1, ranked=True),
}
"""Data sets of the Long Range Graph Benchmark (Dwivedi et al., NeurIPS 2022) and their tasks."""

PEPTIDES_META = {
    "version": 1,
    "download_name": "",
    "url": "",
    "num tasks": 10,
    "eval metric": "ap",
    "task type": "binary classification",
    "num classes": 2,
    "binary": "False",
    "split": "stratified",
    "has_node_attr": "True",
    "has_edge_attr": "True",
    "add_inverse_edge": "True",
    "additional node files": "None",
    "additional edge files": "None",
}
"""What ogb has to know of peptides-func in its csv layout, which is not one of its own data sets."""


def peptides_from_csv(data: DatasetConfig) -> LoadedDataset | None:
    """Peptides-func in OGB's csv layout, if it is there."""
    files = tuple(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "edge-feat", "graph-label"))
    raw = Raw("LRGB-ogb-layout", "peptides_func", (*files, "split/stratified", "RELEASE_v1.txt"))
    if raw.find(data)[0] is None:
        return None
    dataset = open_dataset(
        "ogb.graphproppred", "PygGraphPropPredDataset", "peptides-func", raw, data, meta_dict=PEPTIDES_META
    )
    return LoadedDataset(dataset, LRGB["peptides-func"], three_parts(dataset))


def lrgb(data: DatasetConfig, name: str) -> LoadedDataset:
    """A data set of the Long Range Graph Benchmark, through PyG's class.

    The whole of peptides-func may also lie in OGB's csv layout, which PyG's class does not read; ogb's does.
    """
    kind = "pickle" if name.endswith("-sp") else "pt"
    raw = Raw("LRGBDataset", name, tuple(f"raw/{split}.{kind}" for split in SPLITS))
    if name == "peptides-func" and raw.find(data)[0] is None:
        found = peptides_from_csv(data)
        if found is not None:
            return found
    graphs, parts = joined(from_raw(raw, data, lambda root: [LRGBDataset(str(root), name, s) for s in SPLITS]))
    resample = ResampleNegatives() if name == "pcqm-contact" and data.resample_negative else None
    return LoadedDataset(graphs, LRGB[name], parts, resample)


def voc_superpixels(data: DatasetConfig) -> LoadedDataset:
    """PascalVOC-SP in GraphGPS's spelling; of its variants PyG has one."""
    return lrgb(data, "pascalvoc-sp")


def coco_superpixels(data: DatasetConfig) -> LoadedDataset:
    """COCO-SP, likewise."""
    return lrgb(data, "coco-sp")


def lrgb_by_name(data: DatasetConfig) -> LoadedDataset:
    """``PyG-LRGBDataset`` with PyG's own names, in any case."""
    name = data.name.lower()
    if name not in LRGB:
        raise RunError(f"dataset.name: LRGBDataset has no {data.name!r}; there are {', '.join(LRGB)}")
    return lrgb(data, name)
