"""Data sets of the Open Graph Benchmark, through the optional package ``ogb``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import scatter, to_undirected

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import LoadedDataset, Raw, from_raw, need
from pyg_topomask.run.data.formats.lrgb import LRGB, lrgb
from pyg_topomask.run.data.formats.negatives import ResampleNonEdges
from pyg_topomask.run.data.formats.ogb_files import open_dataset, reading_split, split_of, three_parts
from pyg_topomask.run.data.formats.words import code2
from pyg_topomask.run.task import PARTS, Kind, Task, classification

LINK_HITS = {"ogbl-collab": 50, "ogbl-ppa": 100, "ogbl-ddi": 20}
NODE_NAMES = ("ogbn-arxiv", "ogbn-products", "ogbn-proteins")
GRAPH_NAMES = (
    *(f"ogbg-mol{name}" for name in ("hiv", "pcba", "bace", "bbbp", "clintox", "muv", "sider", "tox21", "toxcast")),
    *(f"ogbg-mol{name}" for name in ("esol", "freesolv", "lipo", "chembl")),
    "ogbg-ppa",
    "ogbg-code2",
)
LRGB_NAMES = {
    "peptides-functional": "peptides-func",
    "peptides-structural": "peptides-struct",
    "PCQM4Mv2Contact-shuffle": "pcqm-contact",
}
"""GraphGPS's names, mapped to PyG's."""

PCQM_NAMES = ("PCQM4Mv2-subset", "PCQM4Mv2-full", "PCQM4Mv2-inference")
_GAP = Task("graph", "regression", 1)
_ONE_LABEL, _SEVERAL = Task("graph", "binary", 1), Task("graph", "multilabel", 2)
TASKS = {
    **{name: LRGB[pyg_name] for name, pyg_name in LRGB_NAMES.items()},
    **dict.fromkeys(PCQM_NAMES, _GAP),
    **{f"ogbg-mol{name}": _ONE_LABEL for name in ("hiv", "bace", "bbbp")},
    **{f"ogbg-mol{name}": _SEVERAL for name in ("pcba", "clintox", "muv", "sider", "tox21", "toxcast", "chembl")},
    **{f"ogbg-mol{name}": _GAP for name in ("esol", "freesolv", "lipo")},
    "ogbg-ppa": classification("graph", 37),
    "ogbg-code2": Task("graph", "subtoken", 2),
    "ogbn-arxiv": classification("node", 40),
    "ogbn-products": classification("node", 47),
    "ogbn-proteins": Task("node", "multilabel", 112),
    **{name: Task("edge", "binary", 1, hits_at=k) for name, k in LINK_HITS.items()},
}
"""Tasks before loading; a multilabel task with two outputs may have more."""

NAMES = (*GRAPH_NAMES, *LRGB_NAMES, *PCQM_NAMES, *NODE_NAMES, *LINK_HITS)


def load(data: DatasetConfig) -> LoadedDataset:
    """``format: OGB``: the data sets that GraphGPS groups under it."""
    name = data.name.replace("_", "-") if data.name.startswith("ogb") else data.name
    if name in LRGB_NAMES:
        return lrgb(data, LRGB_NAMES[name])
    if name in PCQM_NAMES:
        return pcqm(data)
    if name in NODE_NAMES:
        return node_property(data, name)
    if name in LINK_HITS:
        return link_property(data, name)
    return graph_property(data, name)


def _raw(name: str) -> Raw:
    return Raw("OGB", name.replace("-", "_"), ("raw", "split", "RELEASE_v1.txt"))


def graph_property(data: DatasetConfig, name: str) -> LoadedDataset:
    """``ogbg-*``."""
    dataset = open_dataset("ogb.graphproppred", "PygGraphPropPredDataset", name, _raw(name), data)
    parts = three_parts(dataset)
    kind, num_tasks = dataset.task_type, int(dataset.num_tasks)
    if kind == "subtoken prediction":
        return code2(dataset, parts)
    if kind == "multiclass classification":
        if name == "ogbg-ppa":
            dataset.transform = _ZeroTypes()
        return LoadedDataset(dataset, classification("graph", int(dataset.num_classes)), parts)
    several: Kind = "regression" if kind == "regression" else "multilabel" if num_tasks > 1 else "binary"
    return LoadedDataset(dataset, Task("graph", several, num_tasks), parts)


class _ZeroTypes(BaseTransform):
    """Gives all nodes of ogbg-ppa, which have no features, the same type."""

    def forward(self, data: Data) -> Data:
        data.x = torch.zeros(data.num_nodes, dtype=torch.long)
        return data


def node_property(data: DatasetConfig, name: str) -> LoadedDataset:
    """``ogbn-*``: one graph, made undirected, with its split as masks.

    The nodes of ogbn-proteins have no features; they get the mean of their edges' features, as in OGB's baselines.
    """
    dataset = open_dataset("ogb.nodeproppred", "PygNodePropPredDataset", name, _raw(name), data)
    graph = dataset[0]
    if name == "ogbn-proteins":
        graph.x = scatter(graph.edge_attr, graph.edge_index[0], dim_size=graph.num_nodes, reduce="mean")
        task = Task("node", "multilabel", int(dataset.num_tasks))
        del graph.edge_attr
    else:
        graph.y = graph.y.view(-1)
        graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
        task = classification("node", int(dataset.num_classes))
    for part, index in zip(PARTS, three_parts(dataset)):
        graph[f"{part}_mask"] = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, index, True)
    return LoadedDataset([graph], task)


def link_property(data: DatasetConfig, name: str) -> LoadedDataset:
    """``ogbl-*``: the graph of the training edges three times, each with the edges to predict in one part.

    Training negatives are redrawn in each epoch; validation and test negatives are those of the benchmark.
    """
    dataset = open_dataset("ogb.linkproppred", "PygLinkPropPredDataset", name, _raw(name), data)
    with reading_split(dataset):
        split = dataset.get_edge_split()
    graph = dataset[0]
    base = Data(x=graph.x, edge_index=graph.edge_index, num_nodes=graph.num_nodes)
    graphs = []
    for part in ("train", "valid", "test"):
        positive = split[part]["edge"].t()
        negative = split[part].get("edge_neg", positive.t()[:0]).t()
        item = base.clone()
        item.edge_label_index = torch.cat([positive, negative], dim=1)
        item.edge_label = torch.cat([torch.ones(positive.size(1)), torch.zeros(negative.size(1))]).long()
        graphs.append(item)
    parts = tuple(torch.tensor([i]) for i in range(3))
    task = Task("edge", "binary", 1, hits_at=LINK_HITS[name])
    return LoadedDataset(graphs, task, parts, ResampleNonEdges)  # type: ignore[arg-type]


def pcqm(data: DatasetConfig) -> LoadedDataset:
    """PCQM4Mv2 with GraphGPS's parts; ogb's class needs RDKit to convert SMILES strings to graphs.

    The test set is OGB's validation set. The validation set has 150,000 training molecules (numpy, seed 42).
    ``subset`` has a tenth of the other training molecules, and 50,000 of the validation set. The parts of
    ``inference`` are OGB's validation, test-dev and test-challenge sets.
    """
    need("rdkit", data.name)
    raw = Raw("OGB", "pcqm4m-v2", ("raw/data.csv.gz", "split_dict.pt", "RELEASE_v1.txt"))
    dataset_class = need("ogb.lsc", data.name).PygPCQM4Mv2Dataset
    dataset = from_raw(raw, data, lambda root: dataset_class(root=str(root)))
    return LoadedDataset(dataset, _GAP, pcqm_parts(data.name, split_of(dataset)))


def pcqm_parts(name: str, split: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test molecules of a variant of PCQM4Mv2."""
    if name == "PCQM4Mv2-inference":
        return split["valid"], split["test-dev"], split["test-challenge"]
    shuffled = torch.from_numpy(np.random.default_rng(seed=42).permutation(split["train"].numpy()))
    val, train = shuffled[:150_000], shuffled[150_000:]
    if name == "PCQM4Mv2-subset":
        train, val = train[: int(0.1 * train.numel())], val[:50_000]
    return train, val, split["valid"]
