"""Samplers of a large graph that need a compiled package: neighbourhoods and clusters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import to_undirected

from pyg_topomask.loader import GraphParts
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import is_one_graph

if TYPE_CHECKING:
    from typing_extensions import Self


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
        super().__init__(graph, _num_batches(graph, batch_size), seed, transform)
        with warnings.catch_warnings():  # PyG recommends pyg_lib
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
            self.sampler = NeighborSampler(graph, list(sizes))

    def of(self, graph: Data, transform: BaseTransform | None) -> Self:
        """Neighbourhoods of other counted nodes of the same graph, with another transform."""
        parts = super().of(graph, transform)
        parts.num_parts = _num_batches(graph, self.batch_size)
        return parts

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


def _num_batches(graph: Data, batch_size: int) -> int:
    """Number of batches of counted nodes."""
    return -(-int(graph.counted.sum()) // batch_size)


def clusters(graph: Data, num_parts: int) -> list[Tensor]:
    """Nodes of each part of METIS's partition, ascending, without empty parts."""
    num_nodes = int(graph.num_nodes)
    both_ways = to_undirected(graph.edge_index, num_nodes=num_nodes)  # METIS needs an undirected graph
    partition = ClusterData(Data(edge_index=both_ways, num_nodes=num_nodes), num_parts, log=False).partition
    parts = partition.node_perm.split(partition.partptr.diff().tolist())
    return [part.sort().values for part in parts if part.numel() > 0]


def has_metis() -> bool:
    """Whether a compiled package with METIS is installed; torch_sparse is usually compiled without it."""
    if torch_geometric.typing.WITH_METIS:
        return True
    rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    try:
        torch.ops.torch_sparse.partition(rowptr, col, None, 2, False)
    except (AttributeError, RuntimeError):  # no torch_sparse, or torch_sparse without METIS
        return False
    return True


def sampler_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a sampler that cannot be used on this machine or with the data set."""
    sampler, data, installed, found = config.train.sampler, config.dataset, torch_geometric.typing, []
    needs = None
    if sampler == "cluster" and not has_metis():
        needs = "METIS: pyg_lib, or torch_sparse compiled with WITH_METIS=1; neither is installed"
    elif sampler == "neighbor" and not (installed.WITH_PYG_LIB or installed.WITH_TORCH_SPARSE):
        needs = "a compiled package: pyg_lib or torch_sparse; neither is installed"
    if needs is not None:
        found.append(f"{sampler} needs {needs}. random_partition needs no compiled package")
    if sampler != "full_batch" and not is_one_graph(data):
        found.append(f"{sampler} takes parts of one large graph, which {data.format} {data.name} is not")
    return [("train.sampler", message) for message in found]
