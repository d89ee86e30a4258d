"""Loaders of one graph in parts: training parts change in each epoch, and those of evaluations stay the same."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch_geometric.typing as installed
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.transforms import BaseTransform, Compose
from torch_geometric.utils import to_undirected

from pyg_topomask.loader import GraphParts, PartSampler, set_epoch, single
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import is_one_graph
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
    order = PartSampler(len(parts), parts.seed, rank(), world_size(), config.train.shuffle)
    return DataLoader(parts, sampler=order, batch_size=1, collate_fn=single, **common)


def evaluation_loader(parts: GraphParts, graph: Data, common: dict[str, Any]) -> DataLoader:
    """A loader of the parts of epoch 0, with its draws, in which each node of ``graph.counted`` is counted once.

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
        change = "lower train.batch_size" if isinstance(parts, Neighborhoods) else "raise train.num_parts"
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


class Neighborhoods(GraphParts):
    """Sampled neighbourhoods of ``batch_size`` counted nodes, which are reshuffled in each epoch.

    PyG's sampler draws the nodes. A part has all edges between them. PyG's own loader keeps only the sampled edges,
    which point towards the counted nodes, so that no walk could leave these. The draw is a function of (seed, epoch,
    part), for any number of the loader's workers.

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
        self.batch_size = batch_size
        super().__init__(graph, 0, seed, transform)
        with warnings.catch_warnings():  # PyG recommends pyg_lib
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
            self.sampler = NeighborSampler(graph, list(sizes))

    def __len__(self) -> int:
        return -(-int(self.graph.counted.sum()) // self.batch_size)

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Distribute the counted nodes over the parts."""
        counted = self.graph.counted.nonzero().view(-1)
        return counted[torch.randperm(counted.numel(), generator=generator)].split(self.batch_size)

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, the counted nodes first."""
        start = NodeSamplerInput(input_id=None, node=self.dealt(epoch, part))
        with torch.random.fork_rng(devices=[]):
            # The compiled samplers draw from torch's CPU generator; torch.manual_seed would also seed those of CUDA.
            torch.default_generator.manual_seed(((self.seed * 1_000_003 + epoch) * 1_000_003 + part) % 2**63)
            return self.sampler.sample_from_nodes(start).node

    def cut(self, epoch: int, part: int) -> Data:
        """A part, before the transform."""
        data = super().cut(epoch, part)
        data.counted = torch.arange(int(data.num_nodes)) < self.dealt(epoch, part).numel()
        return data


def clusters(graph: Data, num_parts: int) -> list[Tensor]:
    """Nodes of each part of METIS's partition, ascending, without empty parts."""
    num_nodes = int(graph.num_nodes)
    both_ways = to_undirected(graph.edge_index, num_nodes=num_nodes)  # METIS needs an undirected graph
    partition = ClusterData(Data(edge_index=both_ways, num_nodes=num_nodes), num_parts, log=False).partition
    parts = partition.node_perm.split(partition.partptr.diff().tolist())
    return [part.sort().values for part in parts if part.numel() > 0]


def sampler_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of a sampler that cannot be used on this machine or with the data set."""
    sampler, data, needs = config.train.sampler, config.dataset, None
    if sampler == "cluster" and not installed.WITH_METIS:
        needs = "pyg_lib with METIS"
    elif sampler == "neighbor" and not (installed.WITH_PYG_LIB or installed.WITH_TORCH_SPARSE):
        needs = "pyg_lib or torch_sparse"
    if needs is not None:
        yield "train.sampler", f"{sampler} needs {needs}, not installed here; random_partition needs neither"
    if sampler != "full_batch" and not is_one_graph(data):
        yield "train.sampler", f"{sampler} takes parts of one large graph, which {data.format} {data.name} is not"
