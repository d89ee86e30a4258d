"""Loading of a large graph in random parts or in neighbourhoods of walks, with walks and edges drawn for each."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.checks import check_integer
from pyg_topomask.data.source import Graph, GraphSource
from pyg_topomask.ops.hashing import GOLDEN, MIX_1, below, mix, wrap
from pyg_topomask.tensor_files import load_tensors
from pyg_topomask.transforms.base import apply_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RandomPartitionLoader", "WalkNeighborLoader", "collate", "load_walks"]

SHARDS, SHARD = "walks.json", "walks-{:05}-of-{:05}.pt"
"""Names of the files of ``topomask precompute``: its settings, and the walks of some start nodes."""


def collate(graphs: Sequence[Data]) -> Batch:
    """The batch of some graphs: that of PyG's ``Batch.from_data_list``, in about half the time if they have walks.

    PyG asks every graph how each of its attributes is joined, and shifts the indices of every graph by a call of their
    own. Here, an attribute whose values are dense tensors on the CPU is joined by a few calls; PyG joins the
    others. Every attribute is the same, and ``to_data_list`` gives the same graphs.

    .. code-block:: python

        loader = torch.utils.data.DataLoader(graphs, batch_size=128, shuffle=True, collate_fn=collate)

    Args:
        graphs: The graphs, with the attributes of the first one. Those of subclasses of ``Data``, which may have rules
            of their own, are left to PyG.

    Raises:
        KeyError: If a graph lacks an attribute of the first one.
    """
    columns = _plain_columns(graphs)
    batch = Batch.from_data_list(graphs, exclude_keys=list(columns))
    joined, slices, shifts = batch._store._mapping, batch._slice_dict, batch._inc_dict
    for name, values in columns.items():
        is_index = "index" in name or name == "face"  # the rule of PyG's ``Data``
        dim = -1 if is_index else 0
        sizes = torch.tensor([value.size(dim) for value in values])
        shifts[name] = batch.ptr[:-1] if is_index else torch.zeros_like(sizes)
        slices[name] = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        joined[name] = torch.cat(values, dim)
        if is_index:
            joined[name] += shifts[name].repeat_interleave(sizes)
    first = dict.fromkeys(name for name in graphs[0]._store._mapping if name != "ptr")  # PyG keeps their order
    batch._store._mapping = first | joined
    batch._slice_dict, batch._inc_dict = ({key: x[key] for key in first if key in x} for x in (slices, shifts))
    return batch


def _plain_columns(graphs: Sequence[Data]) -> dict[str, list[Tensor]]:
    """The values of each attribute that `collate` joins itself."""
    if not all(type(graph) is Data for graph in graphs):
        return {}
    stores = [graph._store._mapping for graph in graphs]
    names = (name for name, value in stores[0].items() if _is_plain(value) and "batch" not in name and name != "ptr")
    columns = {name: [store.get(name) for store in stores] for name in names}
    return {name: values for name, values in columns.items() if all(type(value) is Tensor for value in values)}


def _is_plain(value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and value.is_cpu and value.layout == torch.strided
    return is_dense and value.dim() > 0 and value.dtype != torch.bool


class _PartLoader(DataLoader):
    """Loader of the parts that a `GraphParts` deals anew in each epoch; each pass is a new epoch."""

    sampler: PartSampler

    def __init__(self, parts: GraphParts, shuffle: bool, rank: int, num_processes: int, kwargs: dict[str, Any]) -> None:
        kwargs.setdefault("generator", torch.Generator().manual_seed(parts.seed))
        sampler = PartSampler(len(parts), parts.seed, rank, num_processes, shuffle)
        super().__init__(parts, sampler=sampler, batch_size=1, collate_fn=single, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Any:
        epoch = self.sampler.begin()
        set_epoch(self.dataset.transform, epoch)  # type: ignore[attr-defined]
        return super().__iter__()


class RandomPartitionLoader(_PartLoader):
    r"""Loader of random parts of one graph: in each epoch, every node is assigned to one part at random.

    The transform is applied to each part, so that random walks and expander edges are drawn for the part. (PyG's own
    loaders copy the tables of the whole graph, whose node numbers are wrong in a part.) Parts, their order and seeded
    walks depend only on the seed and the epoch, with any number of workers. Each pass over the loader is a new epoch;
    :meth:`set_epoch` chooses another one.

    .. code-block:: python

        transform = Compose([AddExpanderEdges(seed=0), AddRandomWalks(seed=0)])
        for part in RandomPartitionLoader(data, num_parts=10, transform=transform):
            out = model(part.x, part.edge_index, None, part)
            loss = cross_entropy(out[part.train_mask], part.y[part.train_mask])

    Args:
        data: The graph: a `Data`, a `DiskGraph`, or a pair of PyG's feature and graph stores.
        num_parts: Number of parts; each has about ``num_nodes / num_parts`` nodes.
        transform: Transform of each part; none if :obj:`None`. The loader sets the epoch of transforms that have one.
            It uses copies of those of this package, so that several loaders may be given the same `AddRandomWalks`.
        seed: Seed of the parts and of their order.
        shuffle: Whether parts come in a new order in each epoch.
        rank: Number of this process, if several processes share the parts.
        num_processes: Number of processes.
        clusters: Cluster of each node, ``[N]``, such as `pyg_topomask.data.partition` finds. Nodes of a cluster stay
            together, and each part is the graph between the nodes of some clusters, drawn anew in each epoch (Chiang et
            al., *Cluster-GCN*, KDD 2019, arXiv:1905.07953, Section 3.2). Nodes are dealt singly if :obj:`None`.
        **kwargs: Further arguments of :class:`torch.utils.data.DataLoader`, such as ``num_workers``.

    Raises:
        TypeError: If ``num_parts`` is not an integer.
        ValueError: If ``num_parts`` is not between 1 and the number of nodes, or of clusters.
    """

    def __init__(
        self,
        data: Graph,
        num_parts: int,
        transform: BaseTransform | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        num_processes: int = 1,
        clusters: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        num_parts, nodes_of = check_integer("num_parts", num_parts, 1), None if clusters is None else split(clusters)
        parts = GraphParts(data, num_parts, seed, _with_own_epoch(transform), nodes_of)
        what, number = ("nodes", parts.source.num_nodes) if nodes_of is None else ("clusters", len(nodes_of))
        if num_parts > number:
            raise ValueError(f"'num_parts' must not exceed the number of {what} (got {num_parts} and {number})")
        super().__init__(parts, shuffle, rank, num_processes, kwargs)


class WalkNeighborLoader(_PartLoader):
    r"""Loader of target nodes, each with the neighbourhood that random walks from it visit, as one small graph.

    A batch is a PyG ``Batch`` of the neighbourhoods. Each has the target first, then the most visited nodes, and all
    edges between them. ``n_id [N]`` are the numbers of the nodes in the whole graph, and ``root [num_graphs]`` those
    of the targets in the batch, where predictions are read:

    .. code-block:: python

        loader = WalkNeighborLoader(data, data.train_mask, batch_size=256, transform=AddRandomWalks(seed=0))
        for batch in loader:
            out = model(batch.x, batch.edge_index, batch.batch, batch)[batch.root]
            loss = cross_entropy(out, batch.y[batch.root])

    The cost of a batch does not depend on the size of the graph. Neighbourhoods depend only on the seed, the epoch and
    the target, with any number of workers. The idea of one small graph for each target is that of Zeng et al.,
    *Decoupling the Depth and Scope of Graph Neural Networks* (shaDow-GNN), NeurIPS 2021, arXiv:2201.07858, Section 3.

    Args:
        data: The graph: a `Data`, a `DiskGraph`, or a pair of PyG's feature and graph stores.
        targets: Numbers of the target nodes, or a mask ``[N]`` of them.
        batch_size: Targets in a batch.
        num_walks: Walks from each target; 32, so that nodes within two or three hops are seldom missed.
        max_length: Hops of a walk, uniform over the edges that leave a node; a walk ends where there is none.
        max_nodes: Largest number of nodes of a neighbourhood, with the target. The most visited ones are kept.
        transform: Transform of each neighbourhood, such as :class:`~pyg_topomask.transforms.AddRandomWalks`.
        seed: Seed of walks and order.
        shuffle: Whether batches come in a new order in each epoch.
        rank, num_processes: Number of this process, and of processes that share the batches.
        **kwargs: Further arguments of :class:`torch.utils.data.DataLoader`, such as ``num_workers``.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a count is below 1, a target does not exist, or a mask is not one of all nodes.
    """

    def __init__(
        self,
        data: Graph,
        targets: Tensor,
        batch_size: int = 256,
        num_walks: int = 32,
        max_length: int = 4,
        max_nodes: int = 32,
        transform: BaseTransform | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        num_processes: int = 1,
        **kwargs: Any,
    ) -> None:
        sizes = (batch_size, num_walks, max_length, max_nodes)
        parts = WalkNeighborhoods(data, targets, *sizes, seed, _with_own_epoch(transform))
        super().__init__(parts, shuffle, rank, num_processes, kwargs)


def load_walks(folder: str | Path) -> dict[str, Any]:
    """The walks in the shards of ``topomask precompute``: what `AddRandomWalks` adds to the whole graph, as a dict.

    ``data.update(load_walks(folder))`` adds them. Tables of one shard are mapped; those of several are joined.

    Args:
        folder: The folder.

    Raises:
        FileNotFoundError: If the folder is of something else, or a shard is missing.
    """
    folder = Path(folder).expanduser()
    shards = json.loads((folder / SHARDS).read_text())["settings"]["shards"]
    parts = [load_tensors(folder / SHARD.format(number, shards), mmap=True) for number in range(shards)]
    if shards == 1:
        return parts[0]
    return {
        key: torch.cat([part[key] for part in parts], int(key.endswith("_index"))) if torch.is_tensor(value) else value
        for key, value in parts[0].items()
    }


def _with_own_epoch(transform: BaseTransform | None) -> BaseTransform | None:
    """The transform with copies of those of this package that have an epoch.

    Others are not copied, because a copy may lose the memory that it shares with the loader's workers.
    """
    if isinstance(transform, Compose):
        composed = copy.copy(transform)
        composed.transforms = [_with_own_epoch(part) for part in transform.transforms]
        return composed
    is_ours = type(transform).__module__.startswith("pyg_topomask.")
    return copy.deepcopy(transform) if is_ours and hasattr(transform, "set_epoch") else transform


def set_epoch(transform: BaseTransform | None, epoch: int) -> None:
    """Set the epoch of a transform, or of the transforms in a composition."""
    if isinstance(transform, Compose):
        for part in transform.transforms:
            set_epoch(part, epoch)
    elif transform is not None and hasattr(transform, "set_epoch"):
        transform.set_epoch(epoch)


def split(clusters: Tensor) -> list[Tensor]:
    """Nodes of each cluster, ascending, without empty ones."""
    nodes = clusters.argsort(stable=True).split(clusters.bincount().tolist())
    return [part for part in nodes if part.numel() > 0]


def single(items: list[Data]) -> Data:
    """The only graph of a batch, unchanged."""
    return items[0]


class EpochSampler(DistributedSampler):
    """Sampler whose order depends only on (seed, epoch), so that a resumed run equals an uninterrupted one.

    Several processes take items in turn. The first items are repeated until all processes have the same number of
    items; otherwise, training would wait forever. No process group is needed.

    Args:
        length: Number of items.
        seed: Seed of the run.
        rank: Number of this process.
        num_processes: Number of processes.
        shuffle: Whether items are permuted at random.
    """

    def __init__(self, length: int, seed: int, rank: int = 0, num_processes: int = 1, shuffle: bool = True) -> None:
        # PyTorch adds the epoch to the seed, so that neighbouring seeds would share their orders.
        super().__init__(range(length), num_processes, rank, shuffle, seed * 1_000_003)  # type: ignore[arg-type]


class PartSampler(EpochSampler):
    """Sampler of pairs (epoch, part). Since the epoch is in the key, workers of a loader need no state."""

    _begun = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Lightning calls this before each epoch."""
        super().set_epoch(epoch)
        self._begun = False

    def begin(self) -> int:
        """Start a pass and return its epoch: the one that :meth:`set_epoch` chose, else the next one."""
        self.epoch += int(self._begun)
        self._begun = True
        return self.epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        return ((epoch, part) for part in super().__iter__())


class GraphParts(Dataset[Data]):
    """Parts of one graph: in each epoch, the graphs between random sets of nodes, or of clusters.

    Walks and other tables are computed for each part, because PyG would copy those of the whole graph unchanged.

    Args:
        graph: The graph, as `GraphSource` takes it.
        num_parts: Number of parts.
        seed: Seed of the random parts.
        transform: Transform of each part; none if :obj:`None`.
        clusters: Nodes of each cluster, which stay together; single nodes if :obj:`None`.
    """

    def __init__(
        self,
        graph: Graph,
        num_parts: int,
        seed: int,
        transform: BaseTransform | None = None,
        clusters: Sequence[Tensor] | None = None,
    ) -> None:
        self.source = GraphSource(graph)
        self.graph, self.num_parts, self.seed, self.transform = graph, num_parts, seed, transform
        self.clusters = clusters
        self._dealt: tuple[int, Sequence[Tensor]] = (-1, ())

    def __len__(self) -> int:
        return self.num_parts

    def of(self, graph: Data, transform: BaseTransform | None) -> Self:
        """The same parts of a graph that differs only in its ``counted`` nodes, with another transform."""
        parts = copy.copy(self)
        parts.graph, parts.source = graph, self.source.of(graph)
        parts.transform, parts._dealt = transform, (-1, ())
        return parts

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, ascending. In each epoch, every node is in one part."""
        return self.dealt(epoch, part).sort().values

    def dealt(self, epoch: int, part: int) -> Tensor:
        """Result of `deal` for a part in an epoch."""
        if self._dealt[0] != epoch:
            # The complement, because a random split permutes the same nodes and is drawn from a small seed.
            generator = torch.Generator().manual_seed(~(self.seed * 1_000_003 + epoch) & 0xFFFFFFFF)
            self._dealt = (epoch, self.deal(generator))
        return self._dealt[1][part]

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Assign the nodes, or the clusters, to parts at random."""
        number = self.source.num_nodes if self.clusters is None else len(self.clusters)
        dealt = torch.randperm(number, generator=generator).tensor_split(self.num_parts)
        if self.clusters is None:
            return dealt
        return [torch.cat([self.clusters[cluster] for cluster in part.tolist()]) for part in dealt]

    def cut(self, epoch: int, part: int) -> Data:
        """A part without the transform."""
        return self.source.subgraph(self.nodes(epoch, part))

    def __getitem__(self, key: tuple[int, int]) -> Data:
        part = self.cut(*key)
        return part if self.transform is None else self.transform(part)


class WalkNeighborhoods(GraphParts):
    """Batches of neighbourhoods of walks; see `WalkNeighborLoader`. Each target is in one batch of an epoch."""

    def __init__(
        self,
        graph: Graph,
        targets: Tensor,
        batch_size: int,
        num_walks: int = 32,
        max_length: int = 4,
        max_nodes: int = 32,
        seed: int = 0,
        transform: BaseTransform | None = None,
    ) -> None:
        super().__init__(graph, 0, seed, transform)
        if targets.is_floating_point() or (targets.dtype == torch.bool and len(targets) != self.source.num_nodes):
            raise ValueError(
                f"'targets' must be integers, or a mask of the {self.source.num_nodes} nodes (got {targets.dtype} "
                f"{list(targets.shape)})"
            )
        self.targets = targets.nonzero().view(-1) if targets.dtype == torch.bool else targets.long()
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.num_walks = check_integer("num_walks", num_walks, 1)
        self.max_length = check_integer("max_length", max_length, 1)
        self.max_nodes = check_integer("max_nodes", max_nodes, 1)
        if self.targets.numel() and (int(self.targets.min()) < 0 or int(self.targets.max()) >= self.source.num_nodes):
            low, high = self.targets.min(), self.targets.max()
            raise ValueError(f"'targets' must be nodes 0 to {self.source.num_nodes - 1} (got {low} to {high})")

    def __len__(self) -> int:
        return -(-self.targets.numel() // self.batch_size)

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Distribute the targets over the batches."""
        return self.targets[torch.randperm(self.targets.numel(), generator=generator)].split(self.batch_size)

    def visited(self, targets: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """The nodes of all neighbourhoods, and the number ``0 … T − 1`` of the target that each belongs to.

        The nodes of a target are sorted by visits, the target first; of equally visited nodes, the lower one is first.
        """
        num_nodes, source = self.source.num_nodes, self.source
        group = torch.arange(targets.numel()).repeat_interleave(self.num_walks)
        walker = torch.arange(self.num_walks).repeat(targets.numel())
        stream = mix((targets[group] * GOLDEN + wrap(self.seed * 1_000_003 + epoch)) * MIX_1 + walker)
        at = targets[group]
        keys = [group * num_nodes + at]
        for step in range(self.max_length):
            begin = source.indptr[at]
            count = source.indptr[at + 1] - begin
            moves = count > 0
            chosen = (begin + below(mix(stream + wrap(step * GOLDEN)), count))[moves]
            at, group, stream = source.index[chosen].long(), group[moves], stream[moves]
            keys.append(group * num_nodes + at)
        key, visits = torch.cat(keys).unique(return_counts=True)
        group, node = key // num_nodes, key % num_nodes
        visits[node == targets[group]] = torch.iinfo(torch.int64).max
        order = visits.argsort(descending=True, stable=True)
        order = order[group[order].argsort(stable=True)]
        group = group[order]
        rank = torch.arange(group.numel()) - torch.searchsorted(group, group)
        kept = rank < self.max_nodes
        return node[order][kept], group[kept]

    def cut(self, epoch: int, part: int) -> Data:
        targets = self.dealt(epoch, part)
        nodes, group = self.visited(targets, epoch)
        edge_index, place = self.source.edges_among(nodes, group)
        sizes = torch.bincount(group, minlength=targets.numel())
        first = sizes.cumsum(0) - sizes
        per_graph = torch.bincount(group[edge_index[0]], minlength=targets.numel()).tolist()
        columns = {name: value.split(sizes.tolist()) for name, value in self.source.node_attributes(nodes).items()}
        columns |= {name: value.split(per_graph) for name, value in self.source.edge_attributes(place).items()}
        columns["n_id"] = nodes.split(sizes.tolist())
        columns["edge_index"] = (edge_index - first[group[edge_index[0]]]).split(per_graph, 1)
        graphs = [
            Data(num_nodes=size, **{name: column[number] for name, column in columns.items()})
            for number, size in enumerate(sizes.tolist())
        ]
        batch = collate(apply_all([] if self.transform is None else [self.transform], graphs))
        batch.root = batch.ptr[:-1]
        return batch

    def __getitem__(self, key: tuple[int, int]) -> Data:
        return self.cut(*key)
