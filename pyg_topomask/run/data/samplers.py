"""In which order graphs are served, and how a large single graph is served in parts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
import torch_geometric.typing
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import to_undirected

from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import is_one_graph


class EpochSampler(Sampler[int]):
    """A permutation that is a function of (seed, epoch) alone, so that a resumed run continues as if undisturbed.

    Several processes take its entries in turn; it then begins again from the first, until all have the same number,
    without which training would wait for ever.

    Args:
        length: Number of items.
        seed: Seed of the run.
        rank: Number of this process.
        num_processes: Number of processes.
        shuffle: Whether it is a permutation; if not, items come in their own order.
    """

    def __init__(self, length: int, seed: int, rank: int = 0, num_processes: int = 1, shuffle: bool = True) -> None:
        self.length, self.seed, self.epoch, self.shuffle = length, seed, 0, shuffle
        self.rank, self.num_processes = rank, num_processes

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.length // self.num_processes)

    def order(self) -> Tensor:
        """This process's items of the epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.length, generator=generator) if self.shuffle else torch.arange(self.length)
        turns = torch.arange(self.rank, len(self) * self.num_processes, self.num_processes)
        return order[turns % self.length]

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
        self._dealt: tuple[int, Sequence[Tensor]] = (-1, ())

    def __len__(self) -> int:
        return self.num_parts

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, ascending; all parts of an epoch have each node once."""
        return self.dealt(epoch, part).sort().values if self.clusters is None else self.clusters[part]

    def dealt(self, epoch: int, part: int) -> Tensor:
        """What was dealt out to a part, in the order of an epoch."""
        if self._dealt[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._dealt = (epoch, self.deal(generator))
        return self._dealt[1][part]

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Deal the nodes out to the parts."""
        return torch.randperm(int(self.graph.num_nodes), generator=generator).tensor_split(self.num_parts)

    def cut(self, epoch: int, part: int) -> Data:
        """A part, before the transform."""
        return self.graph.subgraph(self.nodes(epoch, part))

    def __getitem__(self, key: tuple[int, int]) -> Data:
        part = self.cut(*key)
        return part if self.transform is None else self.transform(part)


class Neighborhoods(GraphParts):
    """Subgraphs around the nodes that are trained on, so many of these at a time, in another order in each epoch.

    PyG's sampler draws the nodes. A part has all edges between them: PyG's own loader keeps only those that were
    followed, directed towards the nodes that are trained on, and no walk would leave these. The draw is a function of
    (seed, epoch, part), whatever the number of the loader's workers.

    Reference: Hamilton et al., *Inductive Representation Learning on Large Graphs*, NeurIPS 2017, arXiv:1706.02216.

    Args:
        graph: The graph; its ``mask`` says which nodes are trained on.
        batch_size: Number of these in a part. They stand first in it, and its ``mask`` has them alone.
        sizes: Neighbours drawn per node, hop by hop.
        seed: Seed of order and neighbours.
        transform: Applied to each part.
    """

    def __init__(
        self, graph: Data, batch_size: int, sizes: Sequence[int], seed: int, transform: BaseTransform | None = None
    ) -> None:
        self.trained, self.batch_size = graph.mask.nonzero().view(-1), batch_size
        super().__init__(graph, -(-self.trained.numel() // batch_size), seed, transform)
        with warnings.catch_warnings():  # PyG would rather have pyg_lib
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
            self.sampler = NeighborSampler(graph, list(sizes))

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Deal out the nodes that are trained on."""
        return self.trained[torch.randperm(self.trained.numel(), generator=generator)].split(self.batch_size)

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, those that are trained on first."""
        start = NodeSamplerInput(input_id=None, node=self.dealt(epoch, part))
        with torch.random.fork_rng(devices=[]):
            # The compiled samplers draw from torch's CPU generator. torch.manual_seed would seed CUDA's as well.
            torch.default_generator.manual_seed((self.seed * 1_000_003 + epoch) * 1_000_003 + part)
            return self.sampler.sample_from_nodes(start).node

    def cut(self, epoch: int, part: int) -> Data:
        """A part, before the transform."""
        data = super().cut(epoch, part)
        data.mask = torch.arange(int(data.num_nodes)) < self.dealt(epoch, part).numel()
        return data


def clusters(graph: Data, num_parts: int) -> list[Tensor]:
    """Nodes of each part of METIS's partition, ascending; parts that it leaves empty are left out."""
    num_nodes = int(graph.num_nodes)
    both_ways = to_undirected(graph.edge_index, num_nodes=num_nodes)  # METIS takes no other
    partition = ClusterData(Data(edge_index=both_ways, num_nodes=num_nodes), num_parts, log=False).partition
    parts = partition.node_perm.split(partition.partptr.diff().tolist())
    return [part.sort().values for part in parts if part.numel() > 0]


def has_metis() -> bool:
    """Whether a compiled package with METIS is there; torch_sparse is usually compiled without it."""
    if torch_geometric.typing.WITH_METIS:
        return True
    rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    try:
        torch.ops.torch_sparse.partition(rowptr, col, None, 2, False)
    except (AttributeError, RuntimeError):  # no torch_sparse; one without METIS
        return False
    return True


def sampler_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a sampler that cannot run here."""
    sampler, have, found = config.train.sampler, torch_geometric.typing, []
    needs = None
    if sampler == "cluster" and not has_metis():
        needs = "METIS: pyg_lib, or torch_sparse compiled with WITH_METIS=1; neither is installed"
    elif sampler == "neighbor" and not (have.WITH_PYG_LIB or have.WITH_TORCH_SPARSE):
        needs = "a compiled package: pyg_lib or torch_sparse; neither is installed"
    if needs is not None:
        message = f"{sampler} needs {needs}. random_partition, which the shipped configs use, needs no compiled package"
        found.append(("train.sampler", message))
    if sampler != "full_batch" and not is_one_graph(config.dataset):
        data = config.dataset
        found.append(
            ("train.sampler", f"{sampler} takes parts of one large graph, which {data.format} {data.name} is not")
        )
    return found
