"""Loading of a large graph in random parts or in neighbourhoods of walks, with walks and edges drawn for each."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.checks import check_integer
from pyg_topomask.data.buckets import Buckets, unpadded
from pyg_topomask.data.collate import collate
from pyg_topomask.data.graph_parts import GraphParts, WalkNeighborhoods, split
from pyg_topomask.data.source import Graph
from pyg_topomask.data.walk_shards import SHARD, SHARDS
from pyg_topomask.tensor_files import load_tensors

__all__ = [
    "Buckets",
    "EpochSampler",
    "PartSampler",
    "RandomPartitionLoader",
    "WalkNeighborLoader",
    "collate",
    "load_walks",
    "set_epoch",
    "single",
    "unpadded",
]


class _PartLoader(DataLoader):
    """Loader of the parts that a `GraphParts` deals anew in each epoch; each pass is a new epoch."""

    sampler: "PartSampler"

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
        ValueError: If ``num_parts`` is not between 1 and the number of nodes, or of clusters, or a node has no cluster.
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
        num_parts = check_integer("num_parts", num_parts, 1)
        nodes_of = None if clusters is None else split(torch.as_tensor(clusters))
        parts = GraphParts(data, num_parts, seed, _with_own_epoch(transform), nodes_of)
        what, number = ("nodes", parts.source.num_nodes) if nodes_of is None else ("clusters", len(nodes_of))
        if clusters is not None and len(clusters) != parts.source.num_nodes:
            raise ValueError(f"'clusters' must have {parts.source.num_nodes} numbers (got {len(clusters)})")
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
    if not (folder / SHARDS).is_file():
        raise FileNotFoundError(f"{folder} has no {SHARDS}; give a folder that 'topomask precompute' wrote")
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
    """Set the epoch of a transform, or of the transforms in a composition. Raises TypeError."""
    if isinstance(transform, Compose):
        for part in transform.transforms:
            set_epoch(part, epoch)
    elif transform is not None and hasattr(transform, "set_epoch"):
        transform.set_epoch(epoch)
    elif transform is not None and not callable(transform):
        raise TypeError(
            f"'transform' must be a transform (got {type(transform).__name__}); of a data set, its 'transform'"
        )


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
