"""Loaders of one graph in parts: training parts change in each epoch, and those of evaluations stay the same."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose
from torch_geometric.utils import to_undirected

from pyg_topomask.data import GraphParts, GraphSource, TargetParts, WalkNeighborhoods, partition, split
from pyg_topomask.loader import PartSampler, set_epoch, single
from pyg_topomask.run.data.source import Serving
from pyg_topomask.run.distributed import rank, world_size
from pyg_topomask.run.errors import RunError


def graph_parts(train: Serving, graph: Data, seed: int, transforms: Sequence[BaseTransform]) -> GraphParts:
    """The parts that ``sampler`` makes of a graph, in which ``counted`` marks the training nodes.

    Raises:
        RunError: If the graph has fewer nodes than parts, or processes cannot share a batch.
    """
    transform = Compose(list(transforms)) if transforms else None
    if train.sampler == "neighbor":
        return Neighborhoods(graph, share_of(train.batch_size), train.neighbor_sizes, seed, transform)
    if train.sampler == "walks":
        share_of(train.batch_size)
        return RootedNeighborhoods(graph, train.batch_size, train.max_nodes, seed, transform)
    if train.num_parts > int(graph.num_nodes or 0):
        raise RunError(f"train.num_parts: the graph has {graph.num_nodes} nodes (got {train.num_parts})")
    if train.sampler == "random_partition":
        return GraphParts(graph, train.num_parts, seed, transform)
    fixed = clusters(graph, train.num_parts)
    return GraphParts(graph, min(train.num_parts, len(fixed)), seed, transform, fixed)


def training_loader(serving: Serving, parts: GraphParts, common: dict[str, Any]) -> DataLoader:
    """A loader of parts that are drawn in each epoch."""
    shared = (rank(), world_size())
    if isinstance(parts, RootedNeighborhoods):  # all processes have all batches, and each has its share of the nodes
        parts, shared = parts.shared(*shared), (0, 1)
    order = PartSampler(len(parts), parts.seed, *shared, serving.shuffle)
    return DataLoader(parts, sampler=order, batch_size=1, collate_fn=single, **common)


def evaluation_loader(parts: GraphParts, graph: Data, common: dict[str, Any]) -> DataLoader:
    """A loader of the parts and draws of the first epoch, in which each node of ``graph.counted`` is counted once.

    Parts are cut each time they are served, so that their walks need not fit into memory together. Parts without a
    counted node are left out, and several processes take turns.

    Raises:
        RunError: If there are fewer parts than processes.
    """
    transform = copy.deepcopy(parts.transform)
    set_epoch(transform, 0)
    fixed = parts.of(graph, transform)
    order = [(0, part) for part in range(len(fixed)) if bool(graph.counted[fixed.dealt(0, part)].any())]
    if len(order) < world_size():
        change = "lower train.batch_size" if isinstance(parts, TargetParts) else "raise train.num_parts"
        raise RunError(f"val.sampler: {world_size()} processes cannot share {len(order)} parts; {change}")
    return DataLoader(fixed, sampler=order[rank() :: world_size()], batch_size=1, collate_fn=single, **common)


def share_of(batch_size: int) -> int:
    """Size of the part of a batch that each process has.

    Raises:
        RunError: If it is not a whole number.
    """
    if batch_size % world_size() != 0:
        raise RunError(
            f"train.batch_size must be divisible by the number of processes, {world_size()} (got {batch_size})"
        )
    return batch_size // world_size()


class Neighborhoods(TargetParts):
    """Sampled neighbourhoods of ``batch_size`` counted nodes, which are reshuffled in each epoch.

    For each hop, every new node draws from the nodes whose edges point to it. A part has all edges between its nodes.
    PyG's own loader keeps only the sampled edges, which point towards the counted nodes, so that no walk could leave
    these. The draw is a function of (seed, epoch, part), for any number of the loader's workers.

    Reference: Hamilton et al., *Inductive Representation Learning on Large Graphs*, NeurIPS 2017, arXiv:1706.02216.

    Args:
        graph: The graph; ``counted`` marks the nodes of the loss or the metrics.
        batch_size: Number of counted nodes in a part. They are its first nodes, and its ``counted`` marks only them.
        sizes: Number of neighbours drawn per node, for each hop.
        seed: Seed of the order and the neighbours.
        transform: Applied to each part.
    """

    def __init__(
        self, graph: Data, batch_size: int, sizes: Sequence[int], seed: int, transform: BaseTransform | None = None
    ) -> None:
        super().__init__(graph, graph.counted.nonzero().view(-1), batch_size, seed, transform)
        self.sizes = sizes
        self.entering = GraphSource(Data(edge_index=graph.edge_index.flip(0), num_nodes=graph.num_nodes))

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, the counted nodes first."""
        found = new = self.dealt(epoch, part)
        for hop, size in enumerate(self.sizes):
            key = ((self.seed * 1_000_003 + epoch) * 1_000_003 + part) * 1_000_003 + hop
            near = self.entering.draw_neighbors(new, size, key)
            new = near[~torch.isin(near, found)]
            found = torch.cat([found, new])
        return found

    def cut(self, epoch: int, part: int) -> Data:
        """A part, before the transform."""
        data = super().cut(epoch, part)
        data.counted = torch.arange(int(data.num_nodes)) < self.dealt(epoch, part).numel()
        return data


class RootedNeighborhoods(WalkNeighborhoods):
    """Neighbourhoods of walks of the counted nodes, whose ``counted`` marks only their roots."""

    share = (0, 1)

    def __init__(
        self, graph: Data, batch_size: int, max_nodes: int, seed: int, transform: BaseTransform | None = None
    ) -> None:
        super().__init__(graph, graph.counted, batch_size, max_nodes=max_nodes, seed=seed, transform=transform)

    def shared(self, rank: int, num_processes: int) -> "RootedNeighborhoods":
        """The share of one of several processes: every so many target nodes of each batch, at least one."""
        parts = copy.copy(self)
        parts.share = (rank, num_processes)
        return parts

    def dealt(self, epoch: int, part: int) -> Tensor:
        targets, (first, step) = super().dealt(epoch, part), self.share
        return targets[first % targets.numel() :: step]

    def cut(self, epoch: int, part: int) -> Data:
        data = super().cut(epoch, part)
        data.counted = torch.zeros(int(data.num_nodes), dtype=torch.bool).index_fill(0, data.root, True)
        return data


def clusters(graph: Data, num_parts: int) -> list[Tensor]:
    """Nodes of each part of a partition with few edges between parts, without empty parts.

    Those of a graph on disk are in its array ``part``.

    Raises:
        RunError: If a graph on disk has none.
    """
    if "disk" in graph:
        if "part" not in graph:
            folder = graph.disk.folder
            raise RunError(f"train.sampler: {folder} has no parts; topomask partition makes a folder with them")
        return split(graph.part)
    num_nodes = int(graph.num_nodes)
    both_ways = to_undirected(graph.edge_index, num_nodes=num_nodes)
    return split(partition(GraphSource(Data(edge_index=both_ways, num_nodes=num_nodes)), num_parts))
