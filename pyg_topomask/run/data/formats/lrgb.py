"""Data sets of the Long Range Graph Benchmark, through PyG's class; peptides-func also in OGB's layout."""

from __future__ import annotations

from torch_geometric.datasets import LRGBDataset

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_parts
from pyg_topomask.run.data.formats.negatives import ResampleNegatives
from pyg_topomask.run.data.formats.ogb_files import open_dataset, three_parts
from pyg_topomask.run.task import PARTS, Task, classification

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
"""What ogb must know about peptides-func in its csv layout, because it is not one of ogb's own data sets."""


def lrgb(data: DatasetConfig, name: str = "") -> LoadedDataset:
    """A data set of the Long Range Graph Benchmark, through PyG's class.

    The complete peptides-func is also distributed in OGB's csv layout, which ogb's class reads.

    Args:
        data: The config.
        name: PyG's name of the data set; ``dataset.name`` if empty.
    """
    name = name or data.name.lower()
    kind = "pickle" if name.endswith("-sp") else "pt"
    raw = Raw("LRGBDataset", name, tuple(f"raw/{split}.{kind}" for split in PARTS))
    if name == "peptides-func" and raw.find(data)[0] is None:
        files = tuple(f"raw/{part}.csv.gz" for part in ("edge", "node-feat", "edge-feat", "graph-label"))
        csv = Raw("LRGB-ogb-layout", "peptides_func", (*files, "split/stratified", "RELEASE_v1.txt"))
        if csv.find(data)[0] is not None:
            package, cls = "ogb.graphproppred", "PygGraphPropPredDataset"
            dataset = open_dataset(package, cls, name, csv, data, meta_dict=PEPTIDES_META)
            return LoadedDataset(dataset, LRGB[name], three_parts(dataset))
    loaded = from_parts(raw, data, lambda root, split: LRGBDataset(root, name, split), LRGB[name])
    if name == "pcqm-contact" and data.resample_negative:
        loaded.resample = ResampleNegatives
    return loaded
