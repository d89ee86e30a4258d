"""Serve a large graph in random parts, each with walks and expander edges of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.checks import check_integer

__all__ = ["RandomPartitionLoader"]


class RandomPartitionLoader(DataLoader):
    r"""Loader of the parts of one graph: its nodes are dealt out at random in each epoch, every node to one part.

    The transform is applied to each part after it was cut out, so that random walks and expander edges are drawn for
    the part. (PyG's own loaders copy the tables of the whole graph, whose node numbers are wrong in a part.) Parts,
    their order and seeded walks depend on the seed and the epoch alone, with any number of workers. Each pass is the
    next epoch; :meth:`set_epoch` chooses another.

    .. code-block:: python

        transform = Compose([AddExpanderEdges(seed=0), AddRandomWalks(seed=0)])
        for part in RandomPartitionLoader(data, num_parts=10, transform=transform):
            out = model(part.x, part.edge_index, None, part)
            loss = cross_entropy(out[part.train_mask], part.y[part.train_mask])

    Args:
        data: The graph.
        num_parts: Number of parts; each has about ``num_nodes / num_parts`` nodes.
        transform: Applied to each part.
        seed: Seed of the parts and of their order.
        shuffle: Whether parts come in a new order in each epoch.
        rank: Number of this process, of several that share out the parts.
        num_processes: Number of processes.
        **kwargs: Further arguments of :class:`torch.utils.data.DataLoader`, such as ``num_workers``.

    Raises:
        TypeError: If ``num_parts`` is no integer.
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
        parts = GraphParts(data, num_parts, seed, transform)
        super().__init__(parts, sampler=sampler, batch_size=1, collate_fn=single, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of an epoch."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Any:
        epoch = self.sampler.begin()
        _set_epoch(self.dataset.transform, epoch)  # type: ignore[attr-defined]
        return super().__iter__()


def _set_epoch(transform: BaseTransform | None, epoch: int) -> None:
    """Tell a transform, and those that it is composed of, the epoch."""
    if isinstance(transform, Compose):
        for part in transform.transforms:
            _set_epoch(part, epoch)
    elif transform is not None and hasattr(transform, "set_epoch"):
        transform.set_epoch(epoch)


def single(items: list[Data]) -> Data:
    """The only graph of a batch, as it is."""
    return items[0]


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

    _begun = False

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of this epoch; Lightning calls it before each."""
        super().set_epoch(epoch)
        self._begun = False

    def begin(self) -> int:
        """The epoch of the pass that begins: the next one, unless :meth:`set_epoch` chose it."""
        self.epoch += int(self._begun)
        self._begun = True
        return self.epoch

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
