"""Where the graphs of an experiment come from, and how they are prepared, split and served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.data.features import FittedTransform
from pyg_topomask.run.data.loaded import LoadedDataset, as_dataset
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Task


@dataclass(frozen=True)
class Split:
    """How the items of a data set, graphs or the nodes of one graph, are divided into three sets.

    Args:
        mode: ``"random"``: shares of a random order; ``"fixed"``: shares in the order of the data set; ``"standard"``:
            the data set's own parts, or masks of its single graph; ``"cv-kfold-K"``, ``"cv-stratifiedkfold-K"``: folds;
            ``"errica"``: published folds.
        shares: Shares, or numbers of items, for training, validation and test.
        index: Number of the test fold, or of the data set's own split if it has several.
        seed: Seed of the split; that of the run if :obj:`None`, and 0 for folds.
        folder: Folder of published folds.
    """

    mode: str = "random"
    shares: tuple[float, ...] = (0.8, 0.1, 0.1)
    index: int = 0
    seed: int | None = None
    folder: str = ""

    @property
    def num_folds(self) -> int | None:
        """K of ``cv-[stratified]kfold-K``; None for other modes."""
        return int(self.mode.rsplit("-", 1)[1]) if self.mode.startswith("cv-") else None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the split, by its key in configs; the seed is None if each run draws its own split."""
        seed = self.seed or 0 if self.num_folds is not None else self.seed
        used: dict[str, dict[str, Any]] = {
            "standard": {},
            "errica": {"dataset.split_dir": self.folder},
            "fixed": {"dataset.split": self.shares},
            "random": {"dataset.split": self.shares, "dataset.split_seed": seed},
        }
        return {"dataset.split_mode": self.mode, **used.get(self.mode, {"dataset.split_seed": seed})}


@dataclass(frozen=True)
class Serving:
    """How graphs, or parts of one large graph, are put into batches.

    Args:
        batch_size: Number of graphs in a batch, or of training nodes in a batch of neighbourhoods.
        shuffle: Whether the training graphs or parts are shuffled in each epoch.
        num_workers: Number of processes that load data; it does not change the results.
        sampler: ``"full_batch"``: whole graphs; ``"random_partition"``, ``"cluster"``, ``"neighbor"``, ``"walks"``:
            parts of one large graph.
        num_parts: Number of parts (random_partition, cluster).
        neighbor_sizes: Number of neighbours drawn per node, for each hop (neighbor).
        max_nodes: Largest number of nodes in the neighbourhood of a node (walks).
        evaluation: Sampler of evaluations: ``"full_batch"``, or the same as ``sampler``.
        redraw: Number of epochs after which the training graphs get new walks; 0: never.
    """

    batch_size: int = 32
    shuffle: bool = True
    num_workers: int = 0
    sampler: str = "full_batch"
    num_parts: int = 10
    neighbor_sizes: Sequence[int] = (20, 15, 10, 5)
    max_nodes: int = 32
    evaluation: str = "full_batch"
    redraw: int = 0


def _unchanged(data: Data) -> Data:
    return data


def _none(seed: int) -> Sequence[BaseTransform]:
    return ()


@dataclass(frozen=True)
class Source:
    """The graphs of an experiment.

    Args:
        graphs: A list of graphs or a data set of PyG, a single graph whose nodes are split, three of these (training,
            validation, test), or a function without arguments that returns one of them.
        task: What is predicted; the numbers of classes and targets are read from the graphs.
        name: Name of the data set, for messages.
        features: Puts the features of a graph into the form that the model takes.
        encodings: Transforms that are functions of the graph alone; what they compute is kept in the cache folder.
        draws: Transforms that draw something, such as walks, as a function of the seed. They are applied last.
        fitted: Classes of transforms that are fitted to the training graphs and applied to the features of all.
        split: How the items are divided. Data in three sets keep these.
        serving: How batches are made.
        follows_attention: Whether redrawn walks follow the attention of the first layer.
        title: What the model is called in messages about graphs that do not fit it.
        hint: What to add to a message about a graph, such as the key to set.
        identity: What two experiments on the same data have in common, by its key in configs.
    """

    graphs: Any
    task: Task | None = None
    name: str = "data"
    features: Callable[[Data], Data] = field(default_factory=lambda: _unchanged)
    encodings: Sequence[BaseTransform] = ()
    draws: Callable[[int], Sequence[BaseTransform]] = field(default_factory=lambda: _none)
    fitted: Sequence[type[FittedTransform]] = ()
    split: Split = field(default_factory=Split)
    serving: Serving = field(default_factory=Serving)
    follows_attention: bool = False
    title: str = "the model"
    hint: Callable[[str], str] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> LoadedDataset:
        """The data set.

        Raises:
            RunError: If the graphs do not fit the task.
        """
        found = self.graphs() if callable(self.graphs) else self.graphs
        if isinstance(found, LoadedDataset):
            return found
        if self.task is None:
            raise RunError("the data need a 'task', such as Task('graph', 'regression', 1)")
        return as_dataset(found, self.task)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Report a graph that a transform or a layer refuses as a :class:`RunError` that names the layers and a key."""
        try:
            yield
        except ValueError as error:
            hint = self.hint(str(error)) if self.hint else ""
            raise RunError(f"{self.title}: a graph of {self.name} does not fit: {error}{hint}") from error
