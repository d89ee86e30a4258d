"""Data sets of the Open Graph Benchmark, through the optional package ``ogb``, and the Long Range Graph Benchmark."""

import inspect
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import LRGBDataset
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import index_to_mask, scatter, to_undirected

from pyg_topomask.run.data.source import LoadedDataset
from pyg_topomask.run.errors import need
from pyg_topomask.run.graphgps.formats.base import Raw, from_parts, from_raw, reading
from pyg_topomask.run.task import PARTS, Parts, Task, classification

if TYPE_CHECKING:
    from pyg_topomask.run.graphgps.config.dataset import DatasetConfig

LRGB = {
    "peptides-func": Task("graph", "multilabel", 10),
    "peptides-struct": Task("graph", "regression", 11),
    "pascalvoc-sp": classification("node", 21),
    "coco-sp": classification("node", 81),
    "pcqm-contact": Task("edge", "binary", 1, ranked=True),
}
"""Data sets of the Long Range Graph Benchmark (Dwivedi et al., NeurIPS 2022) and their tasks."""

LRGB_NAMES = {
    "peptides-functional": "peptides-func",
    "peptides-structural": "peptides-struct",
    "PCQM4Mv2Contact-shuffle": "pcqm-contact",
}
"""GraphGPS's names, mapped to PyG's."""

UNKNOWN, END = "__UNK__", "__EOS__"
"""The words of ogbg-code2 for one that is not in the vocabulary, and for the end of a name."""

_LABELS = {"pcba": 128, "clintox": 2, "muv": 17, "sider": 27, "tox21": 12, "toxcast": 617, "chembl": 1310}
_HITS = {"ogbl-collab": 50, "ogbl-ppa": 100, "ogbl-ddi": 20}
_PCQM = ("PCQM4Mv2-subset", "PCQM4Mv2-full", "PCQM4Mv2-inference")
TASKS = {
    **dict.fromkeys((f"ogbg-mol{name}" for name in ("hiv", "bace", "bbbp")), Task("graph", "binary", 1)),
    **{f"ogbg-mol{name}": Task("graph", "multilabel", count) for name, count in _LABELS.items()},
    **dict.fromkeys((f"ogbg-mol{name}" for name in ("esol", "freesolv", "lipo")), Task("graph", "regression", 1)),
    "ogbg-ppa": classification("graph", 37),
    "ogbg-code2": Task("graph", "subtoken", 5002),
    **{name: LRGB[pyg_name] for name, pyg_name in LRGB_NAMES.items()},
    **dict.fromkeys(_PCQM, Task("graph", "regression", 1)),
    "ogbn-arxiv": classification("node", 40),
    "ogbn-products": classification("node", 47),
    "ogbn-proteins": Task("node", "multilabel", 112),
    **{name: Task("edge", "binary", 1, hits_at=k) for name, k in _HITS.items()},
    "ogbl-citation2": Task("edge", "binary", 1, own_negatives=True),
    "ogbl-vessel": Task("edge", "binary", 1),
}
"""Tasks of ``format: OGB``."""


def load(data: "DatasetConfig", task: Task) -> LoadedDataset:
    """``format: OGB``: the data sets that GraphGPS groups under it."""
    name = data.name
    if name in LRGB_NAMES:
        return lrgb(data, task, LRGB_NAMES[name])
    if name in _PCQM:
        return pcqm(data, task)
    raw = Raw("OGB", name.replace("-", "_"), ("raw", "split", "RELEASE_v1.txt"))
    cls = _class({"g": "graph", "n": "node", "l": "link"}[name[3]], name)
    dataset = from_raw(raw, data, lambda root: cls(name, root))
    return {"graph": graph_property, "node": node_property, "edge": link_property}[task.level](dataset, task)


def _class(kind: str, name: str) -> Any:
    """ogb's class for properties of graphs, nodes or links."""
    return getattr(need(f"ogb.{kind}proppred", f"the data set {name}"), f"Pyg{kind.capitalize()}PropPredDataset")


def split_of(dataset: Any, of: str = "idx") -> dict[str, Any]:
    """ogb's split of the items ("idx") or edges ("edge"), by ``train``, ``valid``, ``test``.

    Raises:
        RunError: If the files of the split are unreadable.
    """
    with reading(f"the split of {type(dataset).__name__}", f"Download its folder 'split' again: {dataset.root}"):
        return getattr(dataset, f"get_{of}_split")()


def three_parts(dataset: Any) -> Parts:
    """Indices of the training, validation and test items."""
    split = split_of(dataset)
    train, val, test = (torch.as_tensor(split[part]) for part in ("train", "valid", "test"))
    return train, val, test


def graph_property(dataset: Any, task: Task) -> LoadedDataset:
    """``ogbg-*``; the nodes of ogbg-ppa have no features and get the same type."""
    if dataset.name == "ogbg-ppa":
        dataset.transform = _add_zero_types
    parts = three_parts(dataset)
    if task.kind == "subtoken":
        count = Counter(word for i in parts[0].tolist() for word in dataset[i].y)
        vocabulary = (*(word for word, _ in count.most_common(5000)), UNKNOWN, END)
        dataset.transform = partial(encode_function, number={word: i for i, word in enumerate(vocabulary)})
        task = Task("graph", "subtoken", len(vocabulary), vocabulary=vocabulary)
    return LoadedDataset(dataset, task, parts)


def _add_zero_types(data: Data) -> Data:
    data.x = torch.zeros(data.num_nodes, dtype=torch.long)
    return data


def encode_function(data: Data, number: Mapping[str, int]) -> Data:
    """A function of ogbg-code2 as GraphGPS and OGB's baselines read it, with the number of each word.

    The graph is cut to its first 1,000 nodes, whose depth, at most 20, becomes the third column of ``x``. Edges to the
    next token and all inverse edges are added; tokens are the attributed nodes. ``y [1, 5]`` has the numbers of the
    first five words of the name, or of the end token after them, and ``words`` the whole name.
    """
    numbers = [number.get(word, number[UNKNOWN]) for word in [*data.y, *[END] * 5][:5]]
    data = data.subgraph(torch.arange(min(data.num_nodes, 1000)))
    token = data.node_is_attributed.view(-1).nonzero().view(-1)
    tree, following = data.edge_index, torch.stack([token[:-1], token[1:]])
    parts = (tree, tree.flip(0), following, following.flip(0))
    x = torch.cat([data.x, data.node_depth.view(-1, 1).clamp(max=20)], dim=1)
    kinds = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    edge_attr = kinds.repeat_interleave(torch.tensor([part.size(1) for part in parts]), dim=0)
    return Data(x, torch.cat(parts, dim=1), edge_attr, torch.tensor([numbers]), words=data.y)


def node_property(dataset: Any, task: Task) -> LoadedDataset:
    """``ogbn-*``: one graph, made undirected, with its split as masks.

    The nodes of ogbn-proteins have no features; they get the mean of their edges' features, as in OGB's baselines.
    """
    graph = dataset[0]
    if task.kind == "multilabel":  # ogbn-proteins
        graph.x = scatter(graph.edge_attr, graph.edge_index[0], dim_size=graph.num_nodes, reduce="mean")
        del graph.edge_attr
    else:
        graph.y = graph.y.view(-1)
        graph.edge_index = to_undirected(graph.edge_index, num_nodes=graph.num_nodes)
    for part, index in zip(PARTS, three_parts(dataset)):
        graph[f"{part}_mask"] = index_to_mask(index, graph.num_nodes)
    return LoadedDataset([graph], task)


def link_property(dataset: Any, task: Task) -> LoadedDataset:
    """``ogbl-*``: the graph of the training edges three times, each with the edges to predict in one part.

    Training negatives are redrawn in each epoch; validation and test negatives are those of the benchmark. In
    ogbl-citation2, each of these links has 1,000 of its own, in their order.
    """
    graph, graphs = dataset[0], []
    for part in split_of(dataset, "edge").values():
        if "source_node" in part:
            source, target = (torch.as_tensor(part[f"{end}_node"]) for end in ("source", "target"))
            part = {"edge": torch.stack([source, target], dim=1)} | part
            if "target_node_neg" in part:
                other = torch.as_tensor(part["target_node_neg"])
                part["edge_neg"] = torch.stack([source.repeat_interleave(other.size(1)), other.flatten()], dim=1)
        pairs = [torch.as_tensor(part[name]) for name in ("edge", "edge_neg") if name in part]
        label = torch.arange(sum(map(len, pairs))) < len(pairs[0])
        item = Data(x=graph.x, edge_index=graph.edge_index, num_nodes=graph.num_nodes)
        item.edge_label_index, item.edge_label = torch.cat(pairs).t(), label.long()
        graphs.append(item)
    train, val, test = torch.arange(3).split(1)
    return LoadedDataset(graphs, task, (train, val, test), ResampleNegatives)


def pcqm(data: "DatasetConfig", task: Task) -> LoadedDataset:
    """PCQM4Mv2 with GraphGPS's parts; ogb's class needs RDKit to convert SMILES strings to graphs.

    The test set is OGB's validation set. The validation set has 150,000 training molecules (numpy, seed 42).
    ``subset`` has a tenth of the other training molecules, and 50,000 of the validation set. The
    three sets of ``inference`` are OGB's validation, test-dev and test-challenge sets; the last two have no labels.
    """
    need("rdkit", data.name)
    raw = Raw("OGB", "pcqm4m-v2", ("raw/data.csv.gz", "split_dict.pt", "RELEASE_v1.txt"))
    cls = need("ogb.lsc", data.name).PygPCQM4Mv2Dataset
    dataset = from_raw(raw, data, lambda root: cls(root=root))
    split = {part: torch.as_tensor(index) for part, index in split_of(dataset).items()}
    if data.name == "PCQM4Mv2-inference":
        return LoadedDataset(dataset, task, (split["valid"], split["test-dev"], split["test-challenge"]))
    shuffled = torch.from_numpy(np.random.default_rng(seed=42).permutation(split["train"].numpy()))
    val, train = shuffled[:150_000], shuffled[150_000:]
    if data.name == "PCQM4Mv2-subset":
        train, val = train[: int(0.1 * train.numel())], val[:50_000]
    return LoadedDataset(dataset, task, (train, val, split["valid"]))


def lrgb(data: "DatasetConfig", task: Task, name: str = "") -> LoadedDataset:
    """A data set of the Long Range Graph Benchmark, through PyG's class.

    Args:
        data: The config.
        task: The task.
        name: PyG's name of the data set; ``dataset.name`` if empty.
    """
    name = name or data.name
    raw = Raw("LRGBDataset", name, tuple(f"raw/{part}.{'pickle' if '-sp' in name else 'pt'}" for part in PARTS))
    if name == "peptides-func" and raw.find(data)[0] is None and PEPTIDES.find(data)[0] is not None:
        return peptides(data, task)
    loaded = from_parts(raw, data, task, lambda root, part: LRGBDataset(root, name, part))
    if task.ranked and data.resample_negative:
        loaded.resample = partial(ResampleNegatives, starts=2)
    return loaded


PEPTIDES = Raw(
    "LRGB-ogb-layout",
    "peptides_func",
    (*(f"raw/{part}.csv.gz" for part in ("edge", "node-feat", "edge-feat", "graph-label")), "split", "RELEASE_v1.txt"),
)
"""The complete peptides-func in OGB's csv layout, in which it is distributed, too."""


def peptides(data: "DatasetConfig", task: Task) -> LoadedDataset:
    """peptides-func through ogb's class, which must be told about data that are not its own."""
    cls = _class("graph", data.name)
    ogb_files = Path(inspect.getfile(cls)).with_name("master.csv")
    known = need("pandas", data.name).read_csv(ogb_files, index_col=0, keep_default_na=False)["ogbg-molpcba"]
    meta = {**known, "num tasks": task.num_outputs, "split": "stratified"}  # otherwise as ogb's molecules
    folder = PEPTIDES.subfolder
    dataset = from_raw(
        PEPTIDES, data, lambda root: cls("peptides-func", meta_dict=meta | {"dir_path": str(Path(root, folder))})
    )
    return LoadedDataset(dataset, task, three_parts(dataset))


TRIES = 10


class ResampleNegatives(BaseTransform):
    """Draws negatives ``(i, j)`` of a graph: pairs that are neither taken nor drawn twice.

    With ``starts`` there are so many for each positive ``(i, k)`` of ``edge_label_index``, with its ``i``, as GraphGPS
    has two for contacts; j is uniform over the nodes, including i, and only positives are taken. Without, there are as
    many as positives, uniform over the pairs of two different nodes without an edge (OGB's link data sets). PyG's
    ``negative_sampling`` draws from Python's global generator, so it would not repeat.

    A pair that is not allowed is drawn again, ten times at most, because a small graph may have too few. The draw is a
    function of (seed, epoch, graph) alone; loader workers see the epoch in shared memory.

    Args:
        seed: Seed of the draws, which also depend on the epoch and the graph.
        starts: Negatives for each positive.
    """

    def __init__(self, seed: int = 0, starts: int | None = None) -> None:
        self.seed, self.starts = seed, starts
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Use the draws of this epoch from now on."""
        self._epoch.fill_(epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()

    def forward(self, data: Data) -> Data:
        index, number = data.edge_label_index, int(data.num_nodes)
        content = int((index[0] * 31 + index[1] * 17 + 1).sum()) + 1_009 * number
        key = (self.seed * 1_000_003 + int(self._epoch)) * 1_000_003 + content
        generator = torch.Generator().manual_seed(key % 2**63)
        positive = index[:, data.edge_label.view(-1) == 1]
        if self.starts is None:
            taken = torch.cat([data.edge_index, torch.arange(number).expand(2, -1)], 1)
            base, size = torch.zeros_like(positive[0]), number**2
        else:
            taken, base, size = positive, number * positive[0].repeat_interleave(self.starts), number
        known = (taken[0] * number + taken[1]).sort().values
        drawn, refused = base, torch.ones_like(base, dtype=torch.bool)
        for _ in range(TRIES):
            new = base + torch.randint(size, base.shape, generator=generator)
            drawn = torch.where(refused, new, drawn)
            refused = _is_refused(drawn, known)
            if not bool(refused.any()):
                break
        drawn = drawn[~refused]
        data.edge_label_index = torch.cat([positive, torch.stack([drawn // number, drawn % number])], dim=1)
        data.edge_label = (torch.arange(data.edge_label_index.size(1)) < positive.size(1)).to(data.edge_label.dtype)
        return data


def _is_refused(key: Tensor, known: Tensor) -> Tensor:
    """Whether an entry is one of the ascending ``known`` ones, or an equal entry comes before."""
    order = key.argsort(stable=True)
    refused = known[torch.searchsorted(known, key).clamp(max=known.numel() - 1)] == key
    refused[order[1:]] |= key[order[1:]] == key[order[:-1]]
    return refused
