"""In which order graphs are served, and how a large single graph is served in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch_geometric.typing
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, NeighborLoader
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.config import Config
from pyg_topomask.run.datasets import is_one_graph


class EpochSampler(Sampler[int]):
    """A permutation that is a function of (seed, epoch) alone, so that a resumed run continues as if undisturbed.

    Several processes take its entries in turn; the first few are then repeated at the end, so that all have the same
    number, without which training would wait for ever.

    Args:
        length: Number of items.
        seed: Seed of the run.
        rank: Number of this process.
        num_processes: Number of processes.
    """

    def __init__(self, length: int, seed: int, rank: int = 0, num_processes: int = 1) -> None:
        self.length, self.seed, self.epoch = length, seed, 0
        self.rank, self.num_processes = rank, num_processes

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this ahead of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.length // self.num_processes)

    def order(self) -> Tensor:
        """This process's items of the epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator)
        missing = len(self) * self.num_processes - self.length
        return torch.cat([order, order[:missing]])[self.rank :: self.num_processes]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order().tolist())


class PartSampler(EpochSampler):
    """The same of (epoch, part): with the epoch in the key, a loader's worker needs no state."""

    def __iter__(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]
        return iter([(self.epoch, part) for part in self.order().tolist()])


class GraphParts(Dataset[Data]):
    """Parts of one graph: the subgraphs of its nodes dealt out at random in each epoch, or of fixed clusters.

    What is computed on a graph, walks above all, is computed on each part after it was cut out: PyG copies a table of
    the whole graph unchanged.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        seed: Seed of the random parts.
        transform: Applied to each part.
        clusters: Nodes of each fixed part; drawn at random if :obj:`None`.
    """

    def __init__(
        self,
        graph: Data,
        num_parts: int,
        seed: int,
        transform: BaseTransform | None = None,
        clusters: Sequence[Tensor] | None = None,
    ) -> None:
        self.graph, self.num_parts, self.seed, self.transform = graph, num_parts, seed, transform
        self.clusters = clusters
        self._drawn: tuple[int, Sequence[Tensor]] = (-1, ())

    def __len__(self) -> int:
        return self.num_parts

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, ascending; all parts of an epoch have each node once."""
        if self.clusters is not None:
            return self.clusters[part]
        if self._drawn[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(int(self.graph.num_nodes), generator=generator)
            self._drawn = (epoch, order.tensor_split(self.num_parts))
        return self._drawn[1][part].sort().values

    def __getitem__(self, key: tuple[int, int]) -> Data:
        part = self.graph.subgraph(self.nodes(*key))
        return part if self.transform is None else self.transform(part)


def clusters(graph: Data, num_parts: int) -> list[Tensor]:
    """Nodes of each part of METIS's partition, ascending."""
    partition = ClusterData(graph, num_parts, log=False).partition
    return [
        partition.node_perm[start:end].sort().values
        for start, end in zip(partition.partptr.tolist(), partition.partptr[1:].tolist())
    ]


class _SeedMask(BaseTransform):
    """Marks the nodes that a neighbourhood was drawn for; they stand first."""

    def forward(self, data: Data) -> Data:
        data.mask = torch.arange(data.num_nodes) < data.batch_size
        del data.batch_size
        return data


class _Both(BaseTransform):
    def __init__(self, first: BaseTransform, second: BaseTransform | None) -> None:
        self.first, self.second = first, second

    def forward(self, data: Data) -> Data:
        data = self.first(data)
        return data if self.second is None else self.second(data)


def neighbor_loader(
    graph: Data, config: Config, sampler: EpochSampler, batch_size: int, transform: BaseTransform | None
) -> NeighborLoader:
    """Neighbourhoods of the training nodes, ``train.batch_size`` at a time."""
    return NeighborLoader(
        graph,
        num_neighbors=list(config.train.neighbor_sizes),
        input_nodes=graph.mask,
        batch_size=batch_size,
        sampler=sampler,
        transform=_Both(_SeedMask(), transform),
        num_workers=config.num_workers,
    )


def sampler_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a sampler that cannot run here."""
    sampler, have, found = config.train.sampler, torch_geometric.typing, []
    provided = {"cluster": have.WITH_METIS, "neighbor": have.WITH_PYG_LIB}
    if not (provided.get(sampler, True) or have.WITH_TORCH_SPARSE):
        message = f"{sampler} needs the compiled package pyg_lib or torch_sparse; random_partition needs neither"
        found.append(("train.sampler", message))
    if sampler != "full_batch" and not is_one_graph(config.dataset):
        data = config.dataset
        found.append(
            ("train.sampler", f"{sampler} takes parts of one large graph, which {data.format} {data.name} is not")
        )
    return found
