"""Base classes of the metrics: several named values from one pass over the predictions of a whole split."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch_geometric.data import Data
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from pyg_topomask.run.task import Task


class Scores(Metric):
    """A metric whose :meth:`compute` returns a dictionary; its states are summed or joined over processes."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def __init__(self, task: Task, *names: str) -> None:
        """The values of these names for a task."""
        super().__init__()
        self.task, self.names = task, names

    def add_sums(self, *states: str, size: int | None = None) -> None:
        """Add states in double precision, numbers or vectors, that start at zero and are summed over batches."""
        for name in states:
            zeros = torch.zeros(() if size is None else size, dtype=torch.double)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def named(self, means: Mapping[str, Tensor], each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values of `names` among means over targets and, as ``name/0``, …, values ``[T]`` of each target."""
        found = {f"{name}/{i}": value for name, values in each.items() for i, value in enumerate(values)} | {**means}
        return {name: found[name] for name in self.names}

    def compute(self) -> dict[str, Tensor]:
        """The values; `update` takes predictions and targets as the task shapes them, and the batch of graphs."""
        raise NotImplementedError


class StoredScores(Scores):
    """A metric that stores every prediction and target until the end."""

    predictions: list[Tensor]
    targets: list[Tensor]

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_state("predictions", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def update(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> None:
        self.predictions.append(prediction.detach())
        self.targets.append(target.detach())

    def stored(self) -> tuple[Tensor, Tensor]:
        """All predictions and targets, each ``[n, T]``."""
        joined = (dim_zero_cat(state) for state in (self.predictions, self.targets))
        prediction, target = (values if values.dim() > 1 else values.unsqueeze(1) for values in joined)
        return prediction, target
