"""Loading of a large graph in random parts, with walks and expander edges drawn for each part."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.checks import check_integer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RandomPartitionLoader"]


class RandomPartitionLoader(DataLoader):
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
        data: The graph.
        num_parts: Number of parts; each has about ``num_nodes / num_parts`` nodes.
        transform: Transform of each part; none if :obj:`None`. The loader sets the epoch of transforms that have one.
            It uses copies of those of this package, so that several loaders may be given the same `AddRandomWalks`.
        seed: Seed of the parts and of their order.
        shuffle: Whether parts come in a new order in each epoch.
        rank: Number of this process, if several processes share the parts.
        num_processes: Number of processes.
        **kwargs: Further arguments of :class:`torch.utils.data.DataLoader`, such as ``num_workers``.

    Raises:
        TypeError: If ``num_parts`` is not an integer.
        ValueError: If ``num_parts`` is not between 1 and the number of nodes.
    """

    sampler: PartSampler

    def __init__(
        self,
        data: Data,
        num_parts: int,
        transform: BaseTransform | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        num_processes: int = 1,
        **kwargs: Any,
    ) -> None:
        num_parts, num_nodes = check_integer("num_parts", num_parts, 1), int(data.num_nodes or 0)
        if num_parts > num_nodes:
            raise ValueError(f"'num_parts' must not exceed the number of nodes (got {num_parts} and {num_nodes})")
        kwargs.setdefault("generator", torch.Generator().manual_seed(seed))
        sampler = PartSampler(num_parts, seed, rank, num_processes, shuffle)
        parts = GraphParts(data, num_parts, seed, _with_own_epoch(transform))
        super().__init__(parts, sampler=sampler, batch_size=1, collate_fn=single, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Any:
        epoch = self.sampler.begin()
        set_epoch(self.dataset.transform, epoch)  # type: ignore[attr-defined]
        return super().__iter__()


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
    """Parts of one graph: subgraphs of random sets of nodes in each epoch, or of fixed clusters.

    Walks and other tables are computed for each part, because PyG would copy those of the whole graph unchanged.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        seed: Seed of the random parts.
        transform: Transform of each part; none if :obj:`None`.
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

    def of(self, graph: Data, transform: BaseTransform | None) -> Self:
        """The same parts of a graph that differs only in its ``counted`` nodes, with another transform."""
        parts = copy.copy(self)
        parts.graph, parts.transform, parts._dealt = graph, transform, (-1, ())
        return parts

    def nodes(self, epoch: int, part: int) -> Tensor:
        """Nodes of a part, ascending. In each epoch, every node is in one part."""
        return self.dealt(epoch, part).sort().values

    def dealt(self, epoch: int, part: int) -> Tensor:
        """Result of `deal` for a part in an epoch, or the nodes of its cluster."""
        if self.clusters is not None:
            return self.clusters[part]
        if self._dealt[0] != epoch:
            # The complement, because a random split permutes the same nodes and is drawn from a small seed.
            generator = torch.Generator().manual_seed(~(self.seed * 1_000_003 + epoch) & 0xFFFFFFFF)
            self._dealt = (epoch, self.deal(generator))
        return self._dealt[1][part]

    def deal(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Assign the nodes to parts at random."""
        return torch.randperm(int(self.graph.num_nodes), generator=generator).tensor_split(self.num_parts)

    def cut(self, epoch: int, part: int) -> Data:
        """A part without the transform."""
        return self.graph.subgraph(self.nodes(epoch, part))

    def __getitem__(self, key: tuple[int, int]) -> Data:
        part = self.cut(*key)
        return part if self.transform is None else self.transform(part)
