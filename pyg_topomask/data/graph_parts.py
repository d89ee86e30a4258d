"""Parts of one large graph as a data set: random sets of nodes, unions of clusters, and neighbourhoods of walks."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.checks import check_integer
from pyg_topomask.data.collate import collate
from pyg_topomask.data.disk import narrow
from pyg_topomask.data.source import Graph, GraphSource
from pyg_topomask.ops.hashing import GOLDEN, MIX_1, below, mix, wrap
from pyg_topomask.transforms.base import apply_all
from pyg_topomask.transforms.graph_input import select_rows

if TYPE_CHECKING:
    from typing_extensions import Self


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

    def of(self, graph: Data, transform: BaseTransform | None) -> "Self":
        """The same parts of a graph that differs only in its ``counted`` nodes, with another transform."""
        parts = copy.copy(self)
        parts.graph, parts.source = graph, self.source.of(graph)
        parts.transform, parts._dealt = transform, (-1, ())
        return parts

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, ascending. In each epoch, every node is in one part."""
        return self.dealt(epoch, part).sort().values

    def dealt(self, epoch: int, part: int) -> Tensor:
        """Nodes that a part is given in an epoch, without those around them."""
        if self._dealt[0] != epoch:
            # The complement, because a random split permutes the same nodes and is drawn from a small seed.
            generator = torch.Generator().manual_seed(~(self.seed * 1_000_003 + epoch) & 0xFFFFFFFF)
            self._dealt = (epoch, self.deal(generator))
        found = self._dealt[1][part]
        if self.clusters is not None:
            found = torch.cat([self.clusters[cluster] for cluster in found.tolist()])
        return found.long()

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Assign the nodes, or the clusters, to parts at random."""
        number = self.source.num_nodes if self.clusters is None else len(self.clusters)
        return torch.randperm(number, generator=generator).tensor_split(self.num_parts)

    def cut(self, epoch: int, part: int) -> Data:
        """A part without the transform."""
        return self.source.subgraph(self.nodes(epoch, part))

    def __getitem__(self, key: tuple[int, int]) -> Data:
        part = self.cut(*key)
        return part if self.transform is None else self.transform(part)


class TargetParts(GraphParts):
    """Parts around target nodes, each of which is in one part of an epoch.

    Args:
        graph: The graph, as `GraphSource` takes it.
        targets: Numbers of the target nodes.
        batch_size: Number of targets in a part.
        seed: Seed of the order.
        transform: Transform of each part; none if :obj:`None`.
    """

    def __init__(
        self, graph: Graph, targets: Tensor, batch_size: int, seed: int, transform: BaseTransform | None = None
    ) -> None:
        super().__init__(graph, 0, seed, transform)
        self.targets, self.batch_size = targets, batch_size

    def __len__(self) -> int:
        return -(-self.targets.numel() // self.batch_size)

    def of(self, graph: Data, transform: BaseTransform | None) -> "Self":
        parts = super().of(graph, transform)
        parts.targets = graph.counted.nonzero().view(-1)
        return parts

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Distribute the targets over the parts."""
        return self.targets[torch.randperm(self.targets.numel(), generator=generator)].split(self.batch_size)


class WalkNeighborhoods(TargetParts):
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
        targets = torch.as_tensor(targets)  # of an array or a list
        super().__init__(graph, targets, check_integer("batch_size", batch_size, 1), seed, transform)
        wrong_mask = targets.dtype == torch.bool and len(targets) != self.source.num_nodes
        if targets.dim() != 1 or targets.is_floating_point() or wrong_mask:
            raise ValueError(
                f"'targets' must be integers [T], or a mask of the {self.source.num_nodes} nodes (got {targets.dtype} "
                f"{list(targets.shape)})"
            )
        self.targets = targets.nonzero().view(-1) if targets.dtype == torch.bool else targets.long()
        self.num_walks = check_integer("num_walks", num_walks, 1)
        self.max_length = check_integer("max_length", max_length, 1)
        self.max_nodes = check_integer("max_nodes", max_nodes, 1)
        if self.targets.numel() and (int(self.targets.min()) < 0 or int(self.targets.max()) >= self.source.num_nodes):
            low, high = self.targets.min(), self.targets.max()
            raise ValueError(f"'targets' must be nodes 0 to {self.source.num_nodes - 1} (got {low} to {high})")

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
        columns = {name: _divided(x, sizes.tolist()) for name, x in self.source.node_attributes(nodes).items()}
        columns |= {name: _divided(x, per_graph) for name, x in self.source.edge_attributes(place).items()}
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


def _divided(value: Any, sizes: list[int]) -> Sequence[Any]:
    """Consecutive parts of these sizes of an attribute."""
    if isinstance(value, Tensor):
        return value.split(sizes)
    return [select_rows(value, rows) for rows in torch.arange(sum(sizes)).split(sizes)]


def split(clusters: Tensor) -> list[Tensor]:
    """Nodes of each cluster, ascending, without empty ones; int32 if that suffices, since a graph may have many."""
    nodes = narrow(clusters.argsort(stable=True), len(clusters)).split(clusters.bincount().tolist())
    return [part for part in nodes if part.numel() > 0]
