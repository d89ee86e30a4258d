"""Loaders of one graph in parts: training parts change in each epoch, and those of evaluations stay the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.loader import GraphParts, PartSampler, RandomPartitionLoader, set_epoch, single
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.samplers import Neighborhoods, clusters
from pyg_topomask.run.distributed import rank, world_size
from pyg_topomask.run.errors import RunError


def graph_parts(config: Config, graph: Data, seed: int, transforms: Sequence[BaseTransform]) -> GraphParts:
    """The parts that ``train.sampler`` makes of a graph, in which ``counted`` marks the training nodes.

    Raises:
        RunError: If the graph has fewer nodes than parts, or processes cannot share a batch.
    """
    train, transform = config.train, Compose(list(transforms)) if transforms else None
    if train.sampler == "neighbor":
        return Neighborhoods(graph, share_of(train.batch_size), train.neighbor_sizes, seed, transform)
    if train.num_parts > int(graph.num_nodes or 0):
        raise RunError(f"train.num_parts: the graph has {graph.num_nodes} nodes (got {train.num_parts})")
    if train.sampler == "random_partition":
        return GraphParts(graph, train.num_parts, seed, transform)
    fixed = clusters(graph, train.num_parts)
    return GraphParts(graph, len(fixed), seed, transform, fixed)


def training_loader(config: Config, parts: GraphParts, common: dict[str, Any]) -> DataLoader:
    """A loader of parts that are drawn in each epoch."""
    shares: dict[str, Any] = {"shuffle": config.train.shuffle, "rank": rank(), "num_processes": world_size()}
    if config.train.sampler == "random_partition":
        return RandomPartitionLoader(parts.graph, len(parts), parts.transform, parts.seed, **shares, **common)
    order = PartSampler(len(parts), parts.seed, **shares)
    return DataLoader(parts, sampler=order, batch_size=1, collate_fn=single, **common)


def evaluation_loader(parts: GraphParts, graph: Data, common: dict[str, Any]) -> DataLoader:
    """A loader of the parts of epoch 0, with its draws, in which each node of ``graph.counted`` is counted once.

    Parts are cut each time they are served, so that their walks need not fit into memory together. Parts without a
    counted node are left out, and several processes take turns.

    Raises:
        RunError: If there are fewer parts than processes.
    """
    fixed = parts.of(graph, at_epoch_0(parts.transform))
    order = [(0, part) for part in range(len(fixed)) if bool(graph.counted[fixed.dealt(0, part)].any())]
    if len(order) < world_size():
        change = "lower train.batch_size" if isinstance(parts, Neighborhoods) else "raise train.num_parts"
        raise RunError(f"val.sampler: {world_size()} processes cannot share {len(order)} parts; {change}")
    return DataLoader(fixed, sampler=order[rank() :: world_size()], batch_size=1, collate_fn=single, **common)


def at_epoch_0(transform: BaseTransform | None) -> BaseTransform | None:
    """A copy of a transform of parts whose draws stay those of epoch 0."""
    transform = copy.deepcopy(transform)
    set_epoch(transform, 0)
    return transform


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
